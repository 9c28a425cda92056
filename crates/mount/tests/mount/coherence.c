/*
 * Direct and buffered I/O on one file of a mounted pool: `coherence FILE WAY`. In each round a thread reads
 * the file through the page cache without a pause, while asynchronous writes replace all its bytes. After the
 * writes have ended, a buffered read must see the new bytes. Ends with 0 if it does, else prints the first old
 * byte. WAY says which descriptor writes: `direct`, with O_DIRECT; `made`, the one by which the program has
 * made the file, for writing alone. At the end the file is written behind itself from a mapping of it.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "must.h"

enum { ROUNDS = 60, WRITES = 16, WRITE_BYTES = 16384, FILE_BYTES = WRITES * WRITE_BYTES };

static volatile int stop;

static void *read_without_a_pause(void *name)
{
    static char bytes[FILE_BYTES];
    int fd = open(name, O_RDONLY);
    MUST(fd != -1);
    for (long at = 0; !stop; at = (at + WRITE_BYTES) % FILE_BYTES)
        MUST(pread(fd, bytes, WRITE_BYTES, at) == WRITE_BYTES);
    close(fd);
    return NULL;
}

static void write_all_at_once(int fd, aio_context_t context, char *from)
{
    struct iocb blocks[WRITES], *each[WRITES];
    struct io_event events[WRITES];
    memset(blocks, 0, sizeof blocks);
    for (int i = 0; i < WRITES; i++) {
        blocks[i].aio_lio_opcode = IOCB_CMD_PWRITE;
        blocks[i].aio_fildes = fd;
        blocks[i].aio_buf = (unsigned long)(from + i * WRITE_BYTES);
        blocks[i].aio_nbytes = WRITE_BYTES;
        blocks[i].aio_offset = i * WRITE_BYTES;
        each[i] = &blocks[i];
    }
    MUST(syscall(SYS_io_submit, context, WRITES, each) == WRITES);
    MUST(syscall(SYS_io_getevents, context, WRITES, WRITES, events, NULL) == WRITES);
    for (int i = 0; i < WRITES; i++)
        MUST(events[i].res == WRITE_BYTES);
}

int main(int count, char **words)
{
    static char seen[FILE_BYTES];
    char *bytes;
    pthread_t reader;
    aio_context_t context = 0;
    MUST(count == 3 && posix_memalign((void **)&bytes, 4096, FILE_BYTES) == 0);
    int way = strcmp(words[2], "made") ? O_RDWR | O_DIRECT : O_WRONLY | O_EXCL;
    int direct = open(words[1], O_CREAT | way, 0600), plain = open(words[1], O_RDWR);
    MUST(direct != -1 && plain != -1 && syscall(SYS_io_setup, WRITES, &context) == 0);
    memset(bytes, 0, FILE_BYTES);
    MUST(pwrite(direct, bytes, FILE_BYTES, 0) == FILE_BYTES);
    MUST(pthread_create(&reader, NULL, read_without_a_pause, words[1]) == 0);
    for (int round = 0; round < ROUNDS; round++) {
        int value = round % 2 ? 0xaa : 0x55;
        memset(bytes, value, FILE_BYTES);
        write_all_at_once(direct, context, bytes);
        MUST(pread(plain, seen, FILE_BYTES, 0) == FILE_BYTES);
        for (int at = 0; at < FILE_BYTES; at++)
            if ((unsigned char)seen[at] != value) {
                fprintf(stderr, "round %d: byte %d is %#x\n", round, at, (unsigned char)seen[at]);
                return 1;
            }
    }
    stop = 1;
    MUST(pthread_join(reader, NULL) == 0);
    MUST(posix_fadvise(plain, 0, 0, POSIX_FADV_DONTNEED) == 0);
    char *mapped = mmap(NULL, FILE_BYTES, PROT_READ, MAP_SHARED, plain, 0);
    MUST(mapped != MAP_FAILED && pwrite(direct, mapped, FILE_BYTES, FILE_BYTES) == FILE_BYTES);
    MUST(pread(plain, seen, FILE_BYTES, FILE_BYTES) == FILE_BYTES);
    MUST(memcmp(seen, mapped, FILE_BYTES) == 0);
    return 0;
}
