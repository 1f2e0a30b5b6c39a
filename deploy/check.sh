#!/bin/sh
# Builds a static program and the Debian package, and runs both. `cargo xtask deploy-check` calls it.
#
# Usage: deploy/check.sh [PROFILE]; `dev` by default. Needs rustup's target for musl, musl-tools,
# cargo-deb 3.8, binutils, and root.
set -eu
profile=${1:-dev}
folder=$profile
[ "$profile" != dev ] || folder=debug
target=$(uname -m)-unknown-linux-musl
built=${CARGO_TARGET_DIR:-target}/$target/$folder/leasehold
step() { printf '\n== %s\n' "$1"; }
fail() { printf 'deploy-check: %s\n' "$1" >&2; exit 1; }

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

step "a static program ($target, profile $profile)"
cargo build --locked --profile "$profile" --package leasehold-cli --target "$target"
needed=$(readelf --dynamic "$built" | grep NEEDED || true)
[ -z "$needed" ] || fail "it needs libraries: $needed"

step "in a root with nothing but the program and /proc, as another user"
mkdir -p "$scratch/empty/proc" "$scratch/empty/state"
chmod 0755 "$scratch" "$scratch/empty"
chown 65532:65532 "$scratch/empty/state"
cp "$built" "$scratch/empty/leasehold"
said=$(unshare --mount --pid --fork sh -c '
    mount -t proc proc "$1/proc" && exec chroot --userspec=65532:65532 "$1" \
        /leasehold --url sqlite:/state/locks.db run hello -- /leasehold --version' sh "$scratch/empty")
[ "${said#leasehold }" != "$said" ] || fail "it said: $said"
echo "$said"

step "the Debian package"
mkdir -p target/package
"$built" man target/package/man1
for shell in bash fish zsh; do
    "$built" completions "$shell" > "target/package/leasehold.$shell"
done
cargo deb --no-build --profile "$profile" --package leasehold-cli --target "$target" \
    --output "$scratch/leasehold.deb"
[ "$profile" != dist ] || cp "$scratch/leasehold.deb" target/package/
dpkg-deb --contents "$scratch/leasehold.deb" | grep -q usr/share/man/man1/leasehold-run.1.gz ||
    fail "it has no manual pages"

step "installed, run and removed"
mkdir -p "$scratch/root/var/lib/dpkg/info" "$scratch/root/var/lib/dpkg/updates"
touch "$scratch/root/var/lib/dpkg/status" "$scratch/root/var/lib/dpkg/available"
dpkg --root="$scratch/root" --force-not-root --force-depends --install "$scratch/leasehold.deb"
[ "$("$scratch/root/usr/bin/leasehold" --url memory: run hello -- echo one)" = one ] ||
    fail "the installed program does not run"
dpkg --root="$scratch/root" --force-not-root --purge leasehold
[ ! -e "$scratch/root/usr/bin/leasehold" ] || fail "the program is still there"

if command -v actionlint > /dev/null; then
    step "workflows"
    actionlint
else
    echo "deploy-check: actionlint is not installed; the workflows were not looked at"
fi
step "done"
