/* What a recipe's C code may try: it raises none of Python's audit events. Each returns 0 where it got through. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/ipc.h>
#include <sys/mount.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

/* Send rows to a Unix socket. A name that begins with @ is abstract. */
int through_socket(const char *name, const void *rows, size_t size) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    socklen_t length = offsetof(struct sockaddr_un, sun_path) + strlen(name);
    int channel = socket(AF_UNIX, SOCK_STREAM, 0), failed;
    memcpy(address.sun_path, name, strlen(name));
    if (name[0] == '@') address.sun_path[0] = 0;
    else length++;
    failed = connect(channel, (struct sockaddr *)&address, length) || send(channel, rows, size, MSG_NOSIGNAL) < 0;
    close(channel);
    return failed;
}

/* Uncover what is hidden, as it is or from namespaces of its own. */
void uncover(const char *folder) {
    if (umount2(folder, MNT_DETACH) && unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0) umount2(folder, MNT_DETACH);
}

/* Leave rows in memory that System V keeps, under a key that another process knows. */
int through_shared_memory(int key, const void *rows, size_t size) {
    int segment = shmget(key, size, IPC_CREAT | 0600);
    void *memory = segment < 0 ? (void *)-1 : shmat(segment, NULL, 0);
    if (memory == (void *)-1) return 1;
    memcpy(memory, rows, size);
    return 0;
}

/* Leave rows in a queue of messages of POSIX. */
int through_queue(const char *name, const void *rows, size_t size) {
    int queue = syscall(SYS_mq_open, name, O_CREAT | O_WRONLY | O_NONBLOCK, 0600, NULL);
    return queue < 0 || syscall(SYS_mq_timedsend, queue, rows, size, 0, NULL) < 0;
}

/* Leave rows in a file: shared memory is a folder like any other. */
int through_file(const char *name, const void *rows, size_t size) {
    int file = open(name, O_CREAT | O_WRONLY, 0600);
    return file < 0 || write(file, rows, size) < 0;
}
