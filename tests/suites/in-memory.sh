#!/usr/bin/env bash
# Runs a suite on a filesystem in memory, which it mounts before and unmounts after the run. Needs root.
#   in-memory.sh [SUITE [ARGUMENT...]]       all suites unless one is named
source "$(dirname "$0")/setup.sh"
suite="${1:-all}"
shift || true
cargo build --quiet --release --manifest-path "$root/Cargo.toml" -p warpfire-mount --example memory
directory="$(mktemp -d)"
"${CARGO_TARGET_DIR:-$root/target}/release/examples/memory" "$directory" --allow-other > "$directory.log" 2>&1 &
server=$!
trap 'kill "$server" 2>/dev/null; wait "$server" || true; rmdir "$directory"; rm -f "$directory.log"' EXIT
for _ in $(seq 100); do
    grep -q mounted "$directory.log" && break
    kill -0 "$server" 2>/dev/null || { cat "$directory.log"; fail "the server ended before it mounted"; }
    sleep 0.1
done
chmod 755 "$directory"
"$here/$suite.sh" "$directory" "$@"
