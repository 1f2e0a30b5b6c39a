// Takes and gives back locks with Java packages that people run, for tests beside leasehold.
//
//     java -cp JARS Peer.java KIND
//
// with the server's address in LEASEHOLD_PEER_URL. It answers as peer.py does, which lists the
// requests. The one kind is `curator`: InterProcessMutex below the ZooKeeper node /NAME. It lasts as
// long as the session, without ttl; the thread that has it may enter it again.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.RetryOneTime;
import org.apache.zookeeper.KeeperException;

public class Peer {
    private static final int SESSION_MS = 4_000;
    private static final int CONNECT_MS = 30_000;

    private final CuratorFramework client;
    private final Map<String, InterProcessMutex> locks = new HashMap<>();

    Peer(String url) throws Exception {
        String servers = url.replaceFirst("^zk://", "");
        client = CuratorFrameworkFactory.newClient(
            servers, SESSION_MS, SESSION_MS, new RetryOneTime(100));
        client.start();
        if (!client.blockUntilConnected(CONNECT_MS, TimeUnit.MILLISECONDS)) {
            throw new IllegalStateException("no connection to " + servers);
        }
    }

    private boolean take(String name, long waitMs) throws Exception {
        InterProcessMutex lock = locks.get(name);
        if (lock == null) {
            lock = new InterProcessMutex(client, "/" + name);
        }
        boolean held = lock.acquire(waitMs, TimeUnit.MILLISECONDS);
        if (held) {
            locks.put(name, lock);
        }
        return held;
    }

    private boolean release(String name) throws Exception {
        InterProcessMutex lock = locks.get(name);
        if (lock == null) {
            return false;
        }
        lock.release();
        if (!lock.isOwnedByCurrentThread()) {
            locks.remove(name);
        }
        return true;
    }

    private boolean write(String node) throws Exception {
        try {
            client.setData().forPath(node, new byte[0]);
        } catch (KeeperException.NoAuthException refused) {
            return false;
        }
        return true;
    }

    private String answer(String line) throws Exception {
        String[] words = line.split(" ");
        switch (words[0]) {
            case "try":
                return take(words[1], 0) ? "held" : "busy";
            case "lock":
                return take(words[1], Long.parseLong(words[3])) ? "held" : "timeout";
            case "release":
                return release(words[1]) ? "released" : "gone";
            case "write":
                return write(words[1]) ? "written" : "refused";
            case "extend":
                return "error Curator's locks last as long as the session";
            default:
                return "error not a request";
        }
    }

    public static void main(String[] arguments) throws Exception {
        if (arguments.length != 1 || !arguments[0].equals("curator")) {
            System.err.println("unknown kind; known is: curator");
            System.exit(1);
        }
        Peer peer = new Peer(System.getenv("LEASEHOLD_PEER_URL"));
        System.out.println("ready");
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in));
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            String said;
            try {
                said = peer.answer(line);
            } catch (Exception error) {
                said = "error " + error;
            }
            System.out.println(said);
        }
        peer.client.close();
    }
}
