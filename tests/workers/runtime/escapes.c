/* Ways out of a world that C code may try. Each returns 0 where it got through, and the number of the error if not. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/ptrace.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static int outcome(long status) { return status < 0 ? errno : 0; }

int read_file(const char *path) {
    char byte;
    int file = open(path, O_RDONLY), failed = outcome(file);
    return failed ? failed : outcome(read(file, &byte, 1));
}

int list_folder(const char *path) { return opendir(path) ? 0 : errno; }

int stat_file(const char *path) {
    struct stat status;
    return outcome(stat(path, &status));
}

/* Set the times that a file has: nothing changes but that it was allowed. */
int touch_file(const char *path) {
    struct timespec times[2] = {{0, UTIME_OMIT}, {0, UTIME_NOW}};
    return outcome(utimensat(AT_FDCWD, path, times, 0));
}

int change_mode(const char *path) { return outcome(chmod(path, 0644)); }

/* Reach a Unix socket by path, or by an abstract name that begins with @. */
int reach_socket(const char *name) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    socklen_t length = offsetof(struct sockaddr_un, sun_path) + strlen(name);
    int channel = socket(AF_UNIX, SOCK_STREAM, 0);
    memcpy(address.sun_path, name, strlen(name));
    if (name[0] == '@') address.sun_path[0] = 0;
    else length++;
    return outcome(channel) ?: outcome(connect(channel, (struct sockaddr *)&address, length));
}

int reach_port(int port) {
    struct sockaddr_in address = {AF_INET, htons(port), {htonl(INADDR_LOOPBACK)}};
    int channel = socket(AF_INET, SOCK_STREAM, 0);
    return outcome(channel) ?: outcome(connect(channel, (struct sockaddr *)&address, sizeof address));
}

int start_io_uring(void) {
    char parameters[256] = {0};
    return outcome(syscall(SYS_io_uring_setup, 4, parameters));
}

int attach_memory(int key) {
    int segment = shmget(key, 0, 0);
    return outcome(segment) ?: shmat(segment, NULL, SHM_RDONLY) == (void *)-1 ? errno : 0;
}

/* Leave a key with the user's own keyring, which outlives processes. */
int leave_key(const char *name) { return outcome(syscall(SYS_add_key, "user", name, "rows", 4, -4)); }

int find_key(const char *name) { return outcome(syscall(SYS_keyctl, 10, -4, "user", name, 0)); }

int trace_process(int process) {
    int failed = outcome(ptrace(PTRACE_ATTACH, process, NULL, NULL));
    if (!failed) {
        waitpid(process, NULL, __WALL);
        ptrace(PTRACE_DETACH, process, NULL, NULL);
    }
    return failed;
}

int read_memory(int process) {
    char byte;
    struct iovec ours = {&byte, 1}, theirs = {(void *)read_memory, 1};
    return outcome(process_vm_readv(process, &ours, 1, &theirs, 1, 0));
}

int signal_process(int process) { return outcome(kill(process, 0)); }

/* Take rights in namespaces of its own, in a fork, and mount there. */
int mount_again(void) {
    int status;
    pid_t child = fork();
    if (child == 0) {
        int failed = outcome(unshare(CLONE_NEWUSER | CLONE_NEWNS));
        _exit(failed ?: outcome(mount("none", "/tmp", "tmpfs", 0, NULL)));
    }
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : EINTR;
}

int enter_namespace(const char *path) {
    int file = open(path, O_RDONLY);
    return outcome(file) ?: outcome(setns(file, 0));
}

int make_device(const char *path) { return outcome(mknod(path, S_IFBLK | 0600, 254 << 8)); }

/* Ask for a call by the number that it has in 32-bit programs: getpid. */
int call_as_32_bit(void) {
#ifdef __x86_64__
    int status;
    pid_t child = fork();
    if (child == 0) {
        long answer;
        __asm__ volatile("int $0x80" : "=a"(answer) : "a"(20) : "memory", "r8", "r9", "r10", "r11");
        _exit(answer < 0 ? -answer : 0);
    }
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : ENOSYS;
#else
    return ENOSYS;
#endif
}

int call_as_x32(void) {
#ifdef __x86_64__
    return outcome(syscall(0x40000000 | 39));
#else
    return ENOSYS;
#endif
}
