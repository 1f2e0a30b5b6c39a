/*
 * Sends connections elsewhere, in a program that is started with this in LD_PRELOAD.
 *
 * LH_REDIRECT is a list of pairs of ports of the loopback address, `FROM:TO,FROM:TO`. A connection
 * to the first port of a pair goes to the second one. All others go where they went.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/socket.h>

static long target(long port) {
    const char *rest = getenv("LH_REDIRECT");
    while (rest && *rest) {
        char *end;
        long from = strtol(rest, &end, 10);
        if (*end != ':') break;
        long to = strtol(end + 1, &end, 10);
        if (from == port) return to;
        if (*end != ',') break;
        rest = end + 1;
    }
    return port;
}

int connect(int socket, const struct sockaddr *address, socklen_t length) {
    static int (*next)(int, const struct sockaddr *, socklen_t);
    if (!next) next = (int (*)(int, const struct sockaddr *, socklen_t))dlsym(RTLD_NEXT, "connect");
    if (address->sa_family == AF_INET && length >= sizeof(struct sockaddr_in)) {
        struct sockaddr_in other = *(const struct sockaddr_in *)address;
        if (other.sin_addr.s_addr == htonl(INADDR_LOOPBACK)) {
            other.sin_port = htons(target(ntohs(other.sin_port)));
            return next(socket, (const struct sockaddr *)&other, sizeof other);
        }
    }
    return next(socket, address, length);
}
