#!/usr/bin/env bash
# Ten real programs that make high demands on a filesystem, each with a check of its result.
#   programs.sh DIRECTORY [NAME...]          all ten unless some are named
# PostgreSQL does not run as root. If root starts this script, it runs as nobody, so the mount must admit other users.
source "$(dirname "$0")/setup.sh"
source "$here/tree.sh"
workplace "${1:-}"
shift
names="${*:-git tar rsync sqlite_rollback sqlite_wal make mmap_flock cargo postgres shell}"
scratch="$(mktemp -d)"
trap 'cd /; rm -rf "$work" "$scratch"' EXIT
chmod 755 "$work" "$scratch"

git_() {
    need git git
    export GIT_AUTHOR_NAME=suite GIT_AUTHOR_EMAIL=suite@example.org GIT_CONFIG_GLOBAL=/dev/null
    export GIT_COMMITTER_NAME=suite GIT_COMMITTER_EMAIL=suite@example.org
    mkdir "$work/origin" && cd "$work/origin"
    git init -q .
    local i
    for i in $(seq 1 20); do
        mkdir -p "part-$i"
        seq "$i" $((i * 500)) > "part-$i/numbers"
        git add -A && git commit -q -m "part $i"
    done
    git clone -q --no-local "$work/origin" "$work/clone"
    cd "$work/clone"
    git fsck --full --strict
    git checkout -q -b side HEAD~10 && git commit -q --allow-empty -m side && git merge -q -m merge origin/HEAD
    git gc -q --aggressive --prune=now
    git fsck --full --strict
    git diff --quiet origin/HEAD
    [ -z "$(git status --porcelain)" ]
}

tar_() {
    tree "$scratch/tree"
    mkdir "$work/tar"
    tar -C "$scratch/tree" --acls --xattrs -cf - . | tar -C "$work/tar" --acls --xattrs -xpf -
    tar -C "$work/tar" --acls --xattrs --sparse -cf "$work/tree.tar" .
    mkdir "$work/again"
    tar -C "$work/again" --acls --xattrs -xpf "$work/tree.tar"
    diff <(describe "$scratch/tree") <(describe "$work/tar")
    diff <(describe "$work/tar") <(describe "$work/again")
}

rsync_() {
    need rsync rsync
    [ -d "$scratch/tree" ] || tree "$scratch/tree"
    rsync -aHAX --sparse "$scratch/tree/" "$work/rsync/"
    diff <(describe "$scratch/tree") <(describe "$work/rsync")
    rm "$work/rsync/file-10" && echo changed > "$work/rsync/file-11"
    rsync -aHAX --checksum --delete "$scratch/tree/" "$work/rsync/"
    [ -z "$(rsync -aHAX --checksum --delete --itemize-changes --dry-run "$scratch/tree/" "$work/rsync/")" ]
}

sqlite_rollback() {
    need sqlite3 sqlite3
    local db="$work/rollback.db" i
    sqlite3 "$db" 'pragma journal_mode=delete; create table t(a integer primary key, b blob);' > /dev/null
    for i in $(seq 1 30); do
        sqlite3 "$db" "begin; insert into t(b) select randomblob(500) from (with recursive n(x) as
            (select 1 union all select x+1 from n where x<100) select x from n); $([ $((i % 3)) = 0 ] && echo rollback || echo commit);"
    done
    [ "$(sqlite3 "$db" 'pragma integrity_check; select count(*) from t;')" = "$(printf 'ok\n2000')" ]
}

sqlite_wal() {
    need sqlite3 sqlite3
    local db="$work/wal.db" writer
    sqlite3 "$db" 'pragma journal_mode=wal; create table t(writer, n, unique(writer, n));' > /dev/null
    for writer in 1 2 3 4; do
        for i in $(seq 1 100); do
            echo ".timeout 60000"
            echo "begin immediate; insert into t values($writer, $i); commit;"
        done | sqlite3 "$db" &
    done
    wait
    [ "$(sqlite3 "$db" 'pragma integrity_check; select count(*) from t;')" = "$(printf 'ok\n400')" ]
}

make_() {
    need make make
    need gcc gcc
    mkdir "$work/make" && cd "$work/make"
    local i
    for i in $(seq 1 20); do echo "int f$i(void) { return $i; }" > "f$i.c"; done
    { for i in $(seq 1 20); do echo "int f$i(void);"; done
      echo "int main(void) { return $(seq -f 'f%g()' -s ' + ' 1 20) - 210; }"; } > main.c
    printf 'prog: $(patsubst %%.c,%%.o,$(wildcard *.c))\n\t$(CC) -o $@ $^\n' > Makefile
    make -s -j2 && ./prog
    make -q
    sleep 0.01 && touch f7.c
    [ "$(make -j2 | grep -c ' -c ')" = 1 ] && ./prog
}

mmap_flock() {
    need gcc gcc
    cat > "$scratch/mmap_flock.c" <<'C'
#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
/* Four processes count in one mapped page, each step under an exclusive lock. */
int main(int argc, char **argv) {
    int fd = open(argv[1], O_RDWR | O_CREAT | O_TRUNC, 0644);
    if (fd < 0 || ftruncate(fd, 4096)) return 1;
    for (int p = 0; p < 4; p++) {
        if (fork() == 0) {
            int own = open(argv[1], O_RDWR);
            volatile long *count = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, own, 0);
            if (own < 0 || count == MAP_FAILED) _exit(1);
            for (int i = 0; i < 2000; i++) {
                if (flock(own, LOCK_EX)) _exit(1);
                count[0]++;
                if (flock(own, LOCK_UN)) _exit(1);
            }
            _exit(msync((void *)count, 4096, MS_SYNC) ? 1 : 0);
        }
    }
    int status, bad = 0;
    while (wait(&status) > 0) bad |= status;
    long got = 0;
    if (pread(fd, &got, sizeof got, 0) != sizeof got) return 1;
    printf("%ld\n", got);
    return bad || got != 8000;
}
C
    gcc -O1 -o "$work/mmap_flock" "$scratch/mmap_flock.c"
    [ "$("$work/mmap_flock" "$work/counter")" = 8000 ]
}

cargo_() {
    command -v cargo >/dev/null || { say "cargo: not installed, skipped"; return 0; }
    mkdir -p "$work/crate/src" && cd "$work/crate"
    printf '[package]\nname = "tiny"\nversion = "0.1.0"\nedition = "2021"\n[workspace]\n' > Cargo.toml
    echo 'fn main() { println!("built"); } #[test] fn adds() { assert_eq!(1 + 1, 2); }' > src/main.rs
    CARGO_TARGET_DIR="$work/crate/target" cargo build -q --offline
    [ "$(target/debug/tiny)" = built ]
    CARGO_TARGET_DIR="$work/crate/target" cargo test -q --offline
}

postgres() {
    command -v initdb >/dev/null || PATH="$PATH:$(ls -d /usr/lib/postgresql/*/bin 2>/dev/null | tail -n 1)"
    need initdb postgresql
    local data="$work/postgres" as=()
    PATH="$PATH:$(dirname "$(readlink -f "$(command -v initdb)")")"
    mkdir "$data"
    if [ "$(id -u)" = 0 ]; then
        chown nobody "$data"
        as=(setpriv --reuid=nobody --regid="$(id -g nobody)" --clear-groups env "PATH=$PATH" HOME=/)
    fi
    mkdir "$scratch/socket" && chmod 777 "$scratch/socket"
    local settings="-k $scratch/socket -h '' -c port=54329"
    cd "$data"
    "${as[@]}" initdb -D "$data" -k --no-instructions -A trust -U suite -E UTF8 --locale=C > /dev/null
    "${as[@]}" pg_ctl -D "$data" -w -s -l "$data/log" -o "$settings" start
    "${as[@]}" pgbench -h "$scratch/socket" -p 54329 -U suite -i -s 2 -q postgres > /dev/null 2>&1
    "${as[@]}" pgbench -h "$scratch/socket" -p 54329 -U suite -c 4 -T 5 postgres > /dev/null 2>&1
    "${as[@]}" pg_ctl -D "$data" -w -s -m immediate stop
    "${as[@]}" pg_ctl -D "$data" -w -s -l "$data/log" -o "$settings" start
    local sums
    sums="$("${as[@]}" psql -h "$scratch/socket" -p 54329 -U suite -At postgres -c \
        'select (select sum(abalance) from pgbench_accounts) = (select coalesce(sum(delta),0) from pgbench_history)')"
    [ "$sums" = t ]
    "${as[@]}" pg_ctl -D "$data" -w -s -m fast stop
    "${as[@]}" pg_checksums -D "$data" --check > /dev/null
}

# Everyday commands of a shell.
shell() {
    mkdir "$work/shell" && cd "$work/shell"
    local i
    for i in $(seq 1 500); do echo "line $i" >> log; done
    [ "$(wc -l < log)" = 500 ]
    cp --sparse=always -a log copy && cmp log copy
    mv copy moved && [ ! -e copy ]
    sed -i 's/line/LINE/' moved && [ "$(grep -c LINE moved)" = 500 ]
    sort -r -S 64k moved -o moved && tail -n 1 moved | grep -q 'LINE 1$'
    mkdir -p a/b/c && mv a z && [ -d z/b/c ]
    find . -name 'c' -type d | grep -q z/b/c
    cp -r z y && rm -r z && [ -d y/b/c ]
    dd if=/dev/urandom of=big bs=1M count=20 status=none && cp big big2 && cmp big big2
    [ "$(du -s --apparent-size -B1M big | cut -f1)" = 20 ]
    gzip -k big && gzip -dc big.gz | cmp - big
}

failed=""
for name in $names; do
    run="$name"
    declare -F "$run" >/dev/null || run="${name}_"
    declare -F "$run" >/dev/null || fail "no program named $name"
    # Not as a condition: in a condition bash ignores `set -e`.
    set +e
    (set -e; "$run") > "$scratch/log" 2>&1
    status=$?
    set -e
    if [ "$status" = 0 ]; then
        say "$name: clean"
    else
        failed="$failed $name"
        say "$name: FAILED"
        tail -n 20 "$scratch/log"
    fi
done
[ -z "$failed" ] || fail "programs:$failed"
