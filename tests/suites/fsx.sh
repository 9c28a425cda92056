#!/usr/bin/env bash
# fsx: random reads, writes, truncations, mappings and reopens of one file against a model in memory.
#   fsx.sh DIRECTORY [SEEDS [OPERATIONS]]    the default is 50 seeds of 20,000 operations
source "$(dirname "$0")/setup.sh"
workplace "${1:-}"
seeds="${2:-50}"
operations="${3:-20000}"
need_crate fsx fsx 0.3.2

scratch="$(mktemp -d)"
trap 'cd /; rm -rf "$work" "$scratch"' EXIT
cat > "$scratch/fsx.toml" <<'TOML'
flen = 1048576
[opsize]
max = 65536
[weights]
close_open = 1
invalidate = 1
mapread = 10
mapwrite = 10
read = 20
write = 20
truncate = 10
fsync = 1
fdatasync = 1
posix_fallocate = 3
punch_hole = 5
sendfile = 2
posix_fadvise = 1
copy_file_range = 5
TOML

for seed in $(seq 1 "$seeds"); do
    if ! fsx -q -N "$operations" -S "$seed" -f "$scratch/fsx.toml" -P "$scratch" "$work/file" \
        > "$scratch/log" 2>&1; then
        tail -n 40 "$scratch/log"
        fail "fsx seed $seed"
    fi
    rm -f "$work/file"
done
say "fsx: $seeds seeds of $operations operations clean"
