# Sourced by the suites: the directory for tools, messages, and installation of tools.
#
# A suite takes the directory to test as its first argument, works in a new directory below it, removes that directory,
# and ends with status 0 only if everything passed. It runs on any filesystem, so that Warpfire can be compared with
# filesystems of the kernel.
#
#   WARPFIRE_SUITES   directory for installed suites (default: target/suites)

set -euo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
root="$(cd "$here/../.." && pwd)"
tools="${WARPFIRE_SUITES:-$root/target/suites}"
mkdir -p "$tools"
PATH="$tools/bin:$PATH"

say() { printf '%s\n' "$*"; }
fail() { printf 'FAIL: %s\n' "$*" >&2; exit 1; }

# workplace DIRECTORY: makes a new directory in the one to test, and removes it at the end.
workplace() {
    [ $# -ge 1 ] && [ -d "$1" ] || fail "usage: $0 DIRECTORY"
    work="$(mktemp -d "$1/suite.XXXXXX")"
    trap 'cd /; rm -rf "$work"' EXIT
}

# need COMMAND PACKAGE: installs a Debian package if the command does not exist.
need() {
    command -v "$1" >/dev/null && return 0
    [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || fail "$1 is not installed (package $2)"
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$2" >/dev/null
}

# need_crate COMMAND CRATE VERSION: builds a suite from crates.io into the directory for tools.
need_crate() {
    [ -x "$tools/bin/$1" ] && return 0
    cargo install --quiet "$2" --version "$3" --root "$tools"
}
