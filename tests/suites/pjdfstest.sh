#!/usr/bin/env bash
# pjdfstest: names, modes, owners, links and times as in POSIX. Needs root.
#   pjdfstest.sh DIRECTORY [PATTERN...]      mounts a second filesystem, in memory, for EXDEV
source "$(dirname "$0")/setup.sh"
workplace "${1:-}"
shift
[ "$(id -u)" = 0 ] || fail "pjdfstest changes users and needs root"
[ -e /usr/include/sys/acl.h ] || { apt-get update -qq && apt-get install -y -qq libacl1-dev acl >/dev/null; }
need_crate pjdfstest pjdfstest 0.2.2

getent group nogroup >/dev/null || groupadd nogroup
getent passwd nobody >/dev/null || useradd -g nogroup -d / -s /usr/sbin/nologin nobody
getent group tests >/dev/null || groupadd tests
getent passwd tests >/dev/null || useradd -g tests -d / -s /usr/sbin/nologin tests

scratch="$(mktemp -d)"
second="$scratch/second"
mkdir "$second"
mount -t tmpfs warpfire-suite "$second"
trap 'cd /; umount "$second"; rm -rf "$work" "$scratch"' EXIT
chmod 755 "$work" "$scratch" "$second"

cat > "$scratch/pjdfstest.toml" <<'TOML'
[features]
posix_fallocate = {}
rename_ctime = {}
utime_now = {}
utimensat = {}

[settings]
naptime = 0.01
allow_remount = false

[dummy_auth]
entries = [["nobody", "nogroup"], ["tests", "tests"]]
TOML

report="$scratch/report"
status=0
pjdfstest -c "$scratch/pjdfstest.toml" -p "$work" -s "$second" "$@" > "$report" 2>&1 || status=$?
# The details of failed tests only, then the summary.
grep -A 6 -E ' FAILED$| failed$' "$report" || true
tail -n 1 "$report"
[ "$status" = 0 ] || fail "pjdfstest ended with status $status"
