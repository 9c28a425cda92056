# Sourced by the suites that copy or keep a tree of files of every kind.

# tree DIRECTORY: makes a tree with files of many sizes, links of both kinds, modes, times, attributes and holes.
tree() {
    local at="$1" i
    mkdir -p "$at/empty" "$at/deep/er/and/deeper"
    for i in $(seq 1 300); do
        head -c $((i * i % 9973)) /dev/urandom > "$at/file-$i"
    done
    ln "$at/file-1" "$at/deep/hard"
    ln -s ../file-2 "$at/deep/soft"
    ln -s /nowhere/at/all "$at/dangling"
    truncate -s 10M "$at/sparse"
    printf 'end' >> "$at/sparse"
    chmod 4711 "$at/file-3"
    chmod 2750 "$at/deep"
    chmod 000 "$at/file-4"
    mkfifo "$at/pipe"
    printf 'ü' > "$at/name with spaces and ünïcode"
    setfattr -n user.colour -v green "$at/file-7"
    setfacl -m u:1234:rw,g:4321:r "$at/file-8"
    setfacl -d -m u:1234:rwx "$at/deep/er"
    # rsync ignores differences of less than a second between times, so all times are set here.
    find "$at" -exec touch -h -d '2001-02-03 04:05:06.789 UTC' {} +
    touch -d '1969-12-31 12:00:00.25 UTC' "$at/file-5"
    touch -d '2101-01-01 00:00:00.123456789 UTC' "$at/file-6"
}

# describe DIRECTORY: prints all metadata and checksums of a tree, to compare two trees.
describe() {
    (cd "$1" && find . ! -type d -printf '%p %y %m %U %G %s %n %T@ %l\n' | sort)
    # Without the size of directories, which depends on the filesystem.
    (cd "$1" && find . -mindepth 1 -type d -printf '%p %m %U %G %n %T@\n' | sort)
    (cd "$1" && find . -type f ! -perm 000 -exec sha256sum {} + | sort)
    (cd "$1" && find . \( -type f -o -type d \) | sort | xargs -d '\n' getfattr --absolute-names -d -m '^user')
    (cd "$1" && find . \( -type f -o -type d \) | sort | xargs -d '\n' getfacl -n --absolute-names)
}

# change DIRECTORY: changes a tree in many ways, and two trees alike.
change() {
    local at="$1" i
    for i in $(seq 1 7 300); do chmod 640 "$at/file-$i" && setfattr -n user.number -v "$i" "$at/file-$i"; done
    for i in $(seq 3 7 300); do printf 'more' >> "$at/file-$i"; done
    for i in $(seq 4 7 300); do truncate -s $((i * 5)) "$at/file-$i"; done
    for i in $(seq 5 7 300); do rm "$at/file-$i"; done
    for i in $(seq 6 14 300); do mv "$at/file-$i" "$at/file-$((i + 1))"; done
    seq 1000 | dd of="$at/sparse" bs=1K seek=1237 conv=notrunc status=none
    fallocate --punch-hole --offset 8M --length 1M "$at/sparse"
    setfattr -x user.colour "$at/file-7" 2> /dev/null || true
    chown 1234:4321 "$at/file-8"
    rm "$at/deep/hard"
    ln "$at/file-9" "$at/deep/other"
    mv "$at/deep/er/and" "$at/and"
    rmdir "$at/empty"
    mkdir "$at/empty" "$at/empty/new"
    seq 5000 > "$at/empty/new/numbers"
    mkfifo "$at/empty/pipe" && rm "$at/pipe"
    ln -sf file-3 "$at/dangling"
    find "$at" -exec touch -h -d '2011-12-13 14:15:16.171819 UTC' {} +
}
