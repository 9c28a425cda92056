/*
 * Rearranges files on a mounted pool by the functions of warpfire.h. `slicing story DIRECTORY` works in an
 * empty directory. `slicing refused FILE` runs as a user that may neither read nor write the file on standard
 * input. Ends with 0 if every check holds, else prints the one that does not.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "warpfire.h"

#define MUST(condition)                                                                              \
    do {                                                                                             \
        if (!(condition)) {                                                                          \
            fprintf(stderr, "line %d: %s (errno %d)\n", __LINE__, #condition, errno);                \
            exit(1);                                                                                 \
        }                                                                                            \
    } while (0)

#define REFUSED(call, number) MUST((call) == -1 && errno == (number))

/* Whether a file holds these bytes and no others. */
static int holds(int fd, const char *bytes)
{
    char there[256];
    struct stat asked;
    ssize_t length = pread(fd, there, sizeof there, 0);
    MUST(fstat(fd, &asked) == 0);
    return length == (ssize_t)strlen(bytes) && asked.st_size == length && memcmp(there, bytes, length) == 0;
}

static int made(const char *name, const char *bytes)
{
    int fd = open(name, O_RDWR | O_CREAT | O_EXCL, 0600);
    MUST(fd != -1);
    MUST(write(fd, bytes, strlen(bytes)) == (ssize_t)strlen(bytes));
    return fd;
}

static void story(void)
{
    uint64_t word, other, both, at;
    int text = made("text", "one two three"), copy = made("copy", "");

    MUST(warpfire_yank(text, 4, 4, 0, &word) == 0);
    MUST(warpfire_append(copy, word, &at) == 0 && at == 0);
    MUST(warpfire_append(copy, word, &at) == 0 && at == 4);
    MUST(holds(copy, "two two "));
    MUST(warpfire_insert(text, 0, word) == 0 && holds(text, "two one two three"));
    MUST(warpfire_remove_range(text, 4, 4) == 0 && holds(text, "two two three"));
    MUST(warpfire_paste(text, 1, word) == 0 && holds(text, "ttwo wo three"));

    /* A descriptor that is open for appending appends at the new end. */
    int log = open("text", O_WRONLY | O_APPEND);
    MUST(log != -1 && warpfire_remove_range(text, 4, WARPFIRE_ALL) == 0);
    MUST(write(log, "!", 1) == 1 && holds(text, "ttwo!"));

    /* A slice does not change when its file does. */
    MUST(unlink("text") == 0 && ftruncate(text, 0) == 0);
    MUST(warpfire_yank(copy, 0, 3, 0, &other) == 0);
    MUST(warpfire_join(copy, other, word, 0, &both) == 0);
    MUST(warpfire_replace(copy, both) == 0 && holds(copy, "twotwo "));

    /* Bytes that were written through a mapping move as well. */
    char *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, copy, 0);
    MUST(page != MAP_FAILED);
    memcpy(page, "TWO", 3);
    MUST(warpfire_insert_range(copy, 0, 1) == 0);
    MUST(memcmp(page, "\0TWOtwo ", 8) == 0);
    MUST(munmap(page, 4096) == 0);

    REFUSED(warpfire_insert_range(copy, 9, 1), EINVAL);
    REFUSED(warpfire_insert(copy, 9, word), EINVAL);
    REFUSED(warpfire_yank(copy, 0, 1, 100000, &other), EINVAL);
    MUST(warpfire_drop(copy, word) == 0);
    REFUSED(warpfire_drop(copy, word), ENOENT);
    REFUSED(warpfire_append(copy, word, &at), ENOENT);
    REFUSED(warpfire_append(copy, both + 1000, &at), ENOENT);

    /* A slice ends with its lease. */
    MUST(warpfire_yank(copy, 0, 1, 1, &other) == 0);
    usleep(1200000);
    REFUSED(warpfire_append(copy, other, &at), ENOENT);

    int directory = open(".", O_RDONLY | O_DIRECTORY);
    MUST(directory != -1);
    REFUSED(warpfire_yank(directory, 0, 1, 0, &other), EISDIR);
    struct warpfire_slice_args later;
    memset(&later, 0, sizeof later);
    later.version = WARPFIRE_VERSION + 1;
    REFUSED(ioctl(copy, WARPFIRE_YANK, &later), EINVAL);
    int elsewhere = open("/dev/null", O_RDONLY);
    REFUSED(warpfire_yank(elsewhere, 0, 1, 0, &other), ENOTTY);
}

/* The file is already open, as standard input. The server still checks the permissions of the caller. */
static void refused(void)
{
    uint64_t slice;
    REFUSED(warpfire_yank(0, 0, 1, 0, &slice), EACCES);
    REFUSED(warpfire_remove_range(0, 0, 1), EACCES);
    for (slice = 1; slice < 100; slice++)
        REFUSED(warpfire_drop(0, slice), ENOENT);
}

int main(int count, char **words)
{
    MUST(count == 3);
    if (strcmp(words[1], "story") == 0) {
        MUST(chdir(words[2]) == 0);
        story();
    } else {
        refused();
    }
    return 0;
}
