/*
 * A program that stores into a mapped page without a pause: `storing FILE`. It writes a rising number at byte
 * 96 of FILE until its input ends. Then it writes the page back and prints the last number.
 *
 * A process of its own: one that maps a file of a mount that it serves itself can wait for itself. A page
 * fault holds the lock of its memory while it waits for the server, which needs that lock to get memory.
 */
#include <fcntl.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "must.h"

enum { BYTES = 8192, AT = 96, STORES_BETWEEN_LOOKS = 10000 };

int main(int argc, char **argv)
{
    MUST(argc == 2);
    int fd = open(argv[1], O_RDWR);
    MUST(fd != -1);
    char *bytes = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    MUST(bytes != MAP_FAILED);
    volatile uint64_t *number = (volatile uint64_t *)(bytes + AT);
    uint64_t count = 0;
    struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
    do {
        for (int stores = 0; stores < STORES_BETWEEN_LOOKS; stores++)
            *number = ++count;
    } while (poll(&input, 1, 0) == 0);
    MUST(msync(bytes, BYTES, MS_SYNC) == 0);
    printf("%llu\n", (unsigned long long)count);
    return 0;
}
