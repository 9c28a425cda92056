#!/usr/bin/env bash
# stress-ng: stressors of the class "filesystem", each alone for some seconds, verified.
#   stress-ng.sh DIRECTORY [SECONDS]
source "$(dirname "$0")/setup.sh"
workplace "${1:-}"
seconds="${2:-3}"
need stress-ng stress-ng

# The stressors of the class that use the directory under test. Left out are those that use /proc or devices, need
# hardware, or mount something.
stressors="access chdir chmod chown copy-file dentry dir dirdeep dirmany dnotify dup fallocate fcntl fiemap
    file-ioctl filename flock fpunch fsize fstat getdent handle hdd inode-flags inotify io iomix lease link locka
    lockf lockofd mknod open rename symlink sync-file touch utime xattr"
log="$(mktemp)"
trap 'cd /; rm -rf "$work" "$log"' EXIT
failed=""
for stressor in $stressors; do
    if ! stress-ng "--$stressor" 2 --timeout "$seconds" --verify --temp-path "$work" > "$log" 2>&1; then
        failed="$failed $stressor"
        grep -E 'fail|error' "$log" | head -n 5 || true
    fi
done
[ -z "$failed" ] || fail "stress-ng:$failed"
say "stress-ng: $(wc -w <<< "$stressors") stressors clean"
