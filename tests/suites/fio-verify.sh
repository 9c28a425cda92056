#!/usr/bin/env bash
# fio: writes of unaligned sizes and offsets with many syncs, verified by checksum; buffered, direct and mapped.
#   fio-verify.sh DIRECTORY [MEBIBYTES]
source "$(dirname "$0")/setup.sh"
workplace "${1:-}"
size="${2:-64}"
need fio fio
cd "$work"  # fio writes its state to the current directory

check() {
    local name="$1"
    shift
    fio --name="$name" --directory="$work" --size="${size}M" --verify=crc32c --verify_fatal=1 --do_verify=1 \
        --randrepeat=0 --group_reporting --minimal "$@" > "$work/$name.log" 2>&1 \
        || { tail -n 20 "$work/$name.log"; fail "fio $name"; }
    rm -f "$work/$name".*
    say "fio $name: verified"
}

check unaligned --rw=randwrite --bsrange=512-64k --bs_unaligned --fsync=64 --ioengine=psync
check overwrite --rw=randwrite --bsrange=512-64k --fsync=64 --ioengine=psync --loops=3
check direct --rw=randwrite --bs=4k --direct=1 --ioengine=psync
check large --rw=write --bs=1m --end_fsync=1 --ioengine=psync
check mapped --rw=randwrite --bs=4k --ioengine=mmap --fsync=256
check threads --rw=randwrite --bsrange=4k-64k --ioengine=psync --numjobs=4 --fsync=64
