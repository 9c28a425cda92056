#!/usr/bin/env bash
# Runs all suites, one after the other, on one directory, and prints a summary.
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
