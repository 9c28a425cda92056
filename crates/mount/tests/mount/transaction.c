/*
 * Uses transactions on a mounted pool by the functions of warpfire.h. DIRECTORY is the root of the mount.
 *   transaction story DIRECTORY         on an empty mount
 *   transaction stranger ID DIRECTORY   as a user that did not begin transaction ID
 *   transaction wait DIRECTORY          begins a transaction and waits to be killed
 *   transaction chain DIRECTORY         commits one, begins the next one with it, and waits to be killed
 * Ends with 0 if every check holds, else prints the one that does not.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "warpfire.h"

#define MUST(condition)                                                                              \
    do {                                                                                             \
        if (!(condition)) {                                                                          \
            fprintf(stderr, "line %d: %s (errno %d)\n", __LINE__, #condition, errno);                \
            exit(1);                                                                                 \
        }                                                                                            \
    } while (0)

static void make(const char *directory, const char *name)
{
    char path[4200];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    int fd = open(path, O_CREAT | O_EXCL | O_WRONLY, 0644);
    MUST(fd != -1 && write(fd, name, strlen(name)) == (ssize_t)strlen(name) && close(fd) == 0);
}

/* Lists the changes of a transaction as "created /one; ...". */
static void list(int root, uint64_t id, char *said, size_t room)
{
    static const char *const words[] = {"", "created", "deleted", "renamed", "linked", "changed"};
    struct warpfire_diff_page page;
    memset(&page, 0, sizeof page);
    *said = 0;
    do {
        MUST(warpfire_diff_ioctl(root, id, &page) == 0);
        const struct warpfire_change *change = warpfire_first_change(&page);
        for (uint32_t left = page.count; left > 0; left--, change = warpfire_next_change(change)) {
            size_t used = strlen(said);
            snprintf(said + used, room - used, "%s %s; ", words[change->how], warpfire_change_path(change));
            MUST(change->how != WARPFIRE_CREATED || (change->before.ino == 0 && change->after.ino != 0));
        }
    } while (page.count);
}

static int stranger(int root, uint64_t id)
{
    struct warpfire_diff_page page;
    memset(&page, 0, sizeof page);
    MUST(warpfire_diff_ioctl(root, id, &page) == -1 && errno == ENOENT);
    return 0;
}

int main(int count, char **words)
{
    MUST(count >= 3);
    int root = open(words[count - 1], O_RDONLY | O_DIRECTORY);
    MUST(root != -1);
    if (strcmp(words[1], "stranger") == 0)
        return stranger(root, strtoull(words[2], NULL, 10));
    struct warpfire_tx_args first, second, said;
    char listed[200];
    if (strcmp(words[1], "wait") == 0) {
        MUST(warpfire_tx_ioctl(root, WARPFIRE_TX_BEGIN, 0, WARPFIRE_TX_PROCESS_BOUND, &first) == 0);
        make(first.path, "made");
        for (;;)
            pause();
    }
    if (strcmp(words[1], "chain") == 0) {
        MUST(warpfire_tx_ioctl(root, WARPFIRE_TX_BEGIN, 0, WARPFIRE_TX_PROCESS_BOUND, &first) == 0);
        make(first.path, "kept");
        MUST(warpfire_tx_ioctl(root, WARPFIRE_TX_COMMIT, first.id, WARPFIRE_TX_CHAIN, &second) == 0);
        make(second.path, "made");
        for (;;)
            pause();
    }

    MUST(warpfire_tx_ioctl(root, WARPFIRE_TX_BEGIN, 0, WARPFIRE_TX_PROCESS_BOUND, &first) == 0);
    MUST(first.state == WARPFIRE_TX_OPEN && first.pid == (uint32_t)getpid() && first.uid == (uint32_t)getuid());
    make(first.path, "one");
    make(first.path, "two");
    MUST(faccessat(root, "one", F_OK, 0) == -1);
    list(root, first.id, listed, sizeof listed);
    MUST(strcmp(listed, "created /one; created /two; ") == 0);
    MUST(warpfire_tx_ioctl(root, WARPFIRE_TX_BEGIN, 0, 0, &second) == 0);
    make(second.path, "one");
    MUST(warpfire_tx_ioctl(root, WARPFIRE_TX_NEXT, first.id, 0, &said) == 0 && said.id == second.id);

    MUST(warpfire_tx_ioctl(root, WARPFIRE_TX_COMMIT, first.id, WARPFIRE_TX_DURABLE, &said) == 0);
    MUST(said.state == WARPFIRE_TX_COMMITTED && faccessat(root, "one", F_OK, 0) == 0);
    MUST(warpfire_tx_ioctl(root, WARPFIRE_TX_COMMIT, second.id, 0, &said) == 0 && said.state == WARPFIRE_TX_CONFLICT);
    MUST(strcmp(said.path, "/one") == 0);
    MUST(stranger(root, first.id) == 0);
    MUST(warpfire_tx_ioctl(root, WARPFIRE_TX_ABORT, second.id, 0, &said) == -1 && errno == ENOENT);
    MUST(warpfire_tx_ioctl(root, WARPFIRE_TX_STATUS, 1, 7, &said) == -1 && errno == EINVAL);

    MUST(warpfire_tx_ioctl(root, WARPFIRE_TX_BEGIN, 0, WARPFIRE_TX_PROCESS_BOUND, &first) == 0);
    char path[4200];
    snprintf(path, sizeof path, "%s/one", first.path);
    int one = open(path, O_WRONLY | O_APPEND);
    MUST(one != -1 && write(one, "+", 1) == 1);
    uint32_t flags = WARPFIRE_TX_CHAIN | WARPFIRE_TX_DURABLE;
    MUST(warpfire_tx_ioctl(root, WARPFIRE_TX_COMMIT, first.id, flags, &said) == 0);
    MUST(said.state == WARPFIRE_TX_COMMITTED && said.id > first.id && strcmp(said.path, first.path) != 0);
    MUST(write(one, "+", 1) == 1 && close(one) == 0);
    MUST(warpfire_tx_ioctl(root, WARPFIRE_TX_COMMIT, said.id, 0, &second) == 0);
    MUST(second.state == WARPFIRE_TX_COMMITTED);
    struct stat now;
    MUST(fstatat(root, "one", &now, 0) == 0 && now.st_size == 5);
    return 0;
}
