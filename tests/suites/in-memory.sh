#!/usr/bin/env bash
# Runs a suite on a pool in memory: makes the pool, mounts it, unmounts it after the run, and checks it.
# It needs root.
#   in-memory.sh [--clone] [--snapshots] [--times N] [SUITE [ARGUMENT...]]     all suites unless one is named
#   --clone      runs the suite in a clone of a directory with files of every kind
#   --snapshots  makes snapshots every second, by a rule and by hand, and deletes some, until the suite ends
#   --times N    runs the suite N times on the same pool
source "$(dirname "$0")/setup.sh"
source "$here/tree.sh"
clone=no snapshots=no times=1
while [ $# -gt 0 ]; do
    case "$1" in
        --clone) clone=yes ;;
        --snapshots) snapshots=yes ;;
        --times) times="${2:-}" && shift ;;
        --*) sed -n '2,7s/^# //p' "$0" >&2 && exit 2 ;;
        *) break ;;
    esac
    shift
done
[[ "$times" =~ ^[0-9]+$ ]] || fail "how many times?"
suite="${1:-all}"
shift || true
[ -x "$here/$suite.sh" ] || fail "no suite named $suite"

warpfire="${WARPFIRE_PROGRAM:-}"
if [ -z "$warpfire" ]; then
    cargo build --quiet --release --manifest-path "$root/Cargo.toml" -p warpfire-cli
    warpfire="${CARGO_TARGET_DIR:-$root/target}/release/warpfire"
fi

base="$(mktemp -d)"
# A short name, because the path of a socket has 107 bytes at most.
pool="$base/pool" directory="$base/mnt"
maker=""
end() {
    cd /
    rm -f "$base/goes-on"
    [ -z "$maker" ] || wait "$maker" || true
    ! mountpoint -q "$directory" || "$warpfire" umount "$directory" || umount -l "$directory"
    ! mountpoint -q "$pool" || umount "$pool"
    rm -rf "$base"
}
trap end EXIT
# The suites run as several users.
chmod 755 "$base"
mkdir "$pool" "$directory"
mount -t tmpfs -o size=3584M,mode=700 warpfire-suite "$pool"
"$warpfire" mkfs --size 512M --data 4 --parity 2 "$pool"/{0..5}.img > "$base/mkfs" 2>&1 || { cat "$base/mkfs"; exit 1; }
"$warpfire" mount --allow-other --log "$base/log" "$pool" "$directory"
chmod 755 "$directory"

# compare WHAT DIRECTORY DESCRIPTION: notes a problem unless the directory is as described.
compare() {
    describe "$2" | diff "$base/$3" - > "$base/diff" && return 0
    head -n 40 "$base/diff"
    problem "$1 is not what it should be"
}
problem() {
    printf 'FAIL: %s\n' "$*" >&2
    problems=$((problems + 1))
}
problems=0

place="$directory"
if [ "$clone" = yes ] || [ "$snapshots" = yes ]; then
    mkdir "$directory/origin"
    tree "$directory/origin"
    head -c 20M /dev/urandom > "$directory/origin/large"
    ln "$directory/origin/large" "$directory/origin/deep/er/large"
    chmod 755 "$directory/origin"
    describe "$directory/origin" > "$base/described"
    # What the same tree on another filesystem is after the same changes.
    cp -a "$directory/origin" "$base/copy"
    change "$base/copy"
    describe "$base/copy" > "$base/changed"
fi
if [ "$clone" = yes ]; then
    place="$directory/clone"
    "$warpfire" clone "$directory/origin" "$place"
    compare "the clone" "$place" described
fi

# make_snapshots: makes two snapshots every second. Of those by hand and around them, ranges go.
make_snapshots() {
    local n=0 oldest=1 timer
    while [ -e "$base/goes-on" ]; do
        n=$((n + 1))
        sleep 1 &
        timer=$!
        # The server applies the rules once a minute only.
        "$warpfire" snapshot tick "$directory"
        "$warpfire" snapshot create "$directory" "hand-$n"
        # Each 10 seconds a range in the middle goes, and each minute all older ones.
        [ $((n % 10)) != 0 ] || "$warpfire" snapshot delete "$directory" "hand-$((n - 8))..hand-$((n - 3))"
        if [ $((n % 60)) = 0 ]; then
            "$warpfire" snapshot delete "$directory" "hand-$oldest..hand-$((n - 40))"
            oldest=$((n - 39))
        fi
        wait "$timer"
    done
}
if [ "$snapshots" = yes ]; then
    "$warpfire" snapshot create "$directory" before > /dev/null
    "$warpfire" snapshot rule add "$directory" rule --every 1s --expire 30s > /dev/null
    touch "$base/goes-on"
    make_snapshots > "$base/snapshots" 2>&1 &
    maker=$!
fi

for _ in $(seq "$times"); do
    "$here/$suite.sh" "$place" "$@" || problem "the suite ended with status $?"
done

# The suites make files of their own. This changes those that the clone shows, or that the snapshots keep.
if [ "$clone" = yes ]; then
    compare "the clone after the suite" "$place" described
    change "$place"
    compare "the changed clone" "$place" changed
    compare "the origin of the clone" "$directory/origin" described
elif [ "$snapshots" = yes ]; then
    change "$directory/origin"
    compare "the changed tree" "$directory/origin" changed
fi
if [ "$snapshots" = yes ]; then
    rm "$base/goes-on"
    wait "$maker" || { tail -n 5 "$base/snapshots"; problem "a snapshot was not made or not deleted"; }
    maker=""
    say "snapshots: $(grep -c ' is made' "$base/snapshots") made, $(grep -c ' is deleted' "$base/snapshots") deleted"
    compare "the snapshot from before" "$directory/.snapshots/before/origin" described
fi
"$warpfire" umount "$directory"
# check WHEN: fails if the pool is not clean.
check() {
    local status=0
    "$warpfire" fsck "$pool" > "$base/fsck" 2>&1 || status=$?
    say "fsck $1: $(tail -n 1 "$base/fsck")"
    [ "$status" = 0 ] || problem "the pool is not clean $1"
    grep -q ' 0 notes$' "$base/fsck" || cat "$base/fsck"
}
check "after the suite"
if [ "$snapshots" = yes ]; then
    "$warpfire" snapshot delete "$pool" .. > "$base/deleted"
    check "without its snapshots"
fi
if [ "$clone" = yes ]; then
    "$warpfire" volume delete "$pool:/clone" > "$base/deleted"
    check "without the clone"
fi
! grep -E 'WARN|ERROR|panic' "$base/log" || problem "the server has warned"
[ "$problems" = 0 ] || fail "$problems problems"
