/*
 * One asynchronous direct write of a page at the start of a file: `aio FILE WHEN`. WHEN says when the write is
 * durable: `ended`, when it has ended (O_DSYNC), or `later`.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "must.h"

enum { PAGE = 4096 };

int main(int count, char **words)
{
    char *bytes;
    aio_context_t context = 0;
    struct iocb block, *blocks[] = {&block};
    struct io_event event;
    MUST(count == 3 && posix_memalign((void **)&bytes, PAGE, PAGE) == 0);
    int fd = open(words[1], O_RDWR | O_DIRECT | (strcmp(words[2], "ended") ? 0 : O_DSYNC));
    MUST(fd != -1 && syscall(SYS_io_setup, 1, &context) == 0);
    memset(bytes, 'n', PAGE);
    memset(&block, 0, sizeof block);
    block.aio_lio_opcode = IOCB_CMD_PWRITE;
    block.aio_fildes = fd;
    block.aio_buf = (unsigned long)bytes;
    block.aio_nbytes = PAGE;
    MUST(syscall(SYS_io_submit, context, 1, blocks) == 1);
    MUST(syscall(SYS_io_getevents, context, 1, 1, &event, NULL) == 1 && event.res == PAGE);
    return 0;
}
