#!/usr/bin/env bash
# Builds rocksdb-load, the peer of `warpfire-bench meta --peers rocksdb`, against the system's RocksDB.
#
# usage: benches/peers/rocksdb/build.sh [DIRECTORY]     the program goes to DIRECTORY (default: target/peers)
#
# No part of Warpfire depends on it. On Debian: apt install g++ librocksdb-dev. Debian builds the library with
# its assertions on, which makes it slower. The program says so in its version, and the report shows that
# version.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
directory=${1:-$here/../../../target/peers}
mkdir -p "$directory"

library=$(ldconfig -p | awk '/librocksdb\.so/ { print $NF; exit }')
[ -n "$library" ] || { echo "build.sh: librocksdb is not installed" >&2; exit 1; }
assertions=
if nm -D --undefined-only "$library" | grep -q '__assert_fail'; then assertions=', assertions on'; fi

${CXX:-c++} -std=c++17 -O2 -Wall -Wextra -DASSERTIONS="\"$assertions\"" \
  "$here/load.cc" -o "$directory/rocksdb-load" -lrocksdb -pthread
echo "$directory/rocksdb-load"
