#!/usr/bin/env bash
# Every suite, one after the other, on one directory; a summary at the end.
#   all.sh DIRECTORY
source "$(dirname "$0")/setup.sh"
[ $# = 1 ] && [ -d "$1" ] || fail "usage: $0 DIRECTORY"
failed=""
for suite in pjdfstest fsx stress-ng fio-verify programs; do
    say "== $suite"
    "$here/$suite.sh" "$1" || failed="$failed $suite"
done
[ -z "$failed" ] || fail "suites:$failed"
say "all suites clean"
