/* perfd-relay: runs a command and copies its output to a file that a sidecar reads.
 *
 *   perfd-relay --log FILE [--max-bytes N] [--end FILE] -- COMMAND [ARGUMENT...]
 *
 * stdout and stderr go on to those of the relay, byte by byte, and both into FILE. FILE is renamed to FILE.1 at the
 * end of a line once it has N bytes (64 MiB), so a job of any length needs at most twice that. A disk that is full
 * costs FILE its next lines, never the command. Signals are passed on; the exit status is the command's, also when a
 * signal ended it, and is written into the `--end` file as `exit_code=N`, with 128 + n for signal n.
 *
 * It takes the place of `tee`, which a container runtime may end with the container, before the last lines are out. */

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
  CHUNK_BYTES = 64 * 1024, /* What a pipe holds. */
  DRAIN_MS = 5000,         /* How long output of processes that outlive the command is still copied. */
  USAGE = 64,
  CANNOT_RUN = 126,
  NOT_FOUND = 127,
};

static const int PASSED_ON[] = {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGCONT, SIGWINCH, SIGALRM};

static volatile sig_atomic_t child;
static int woken[2]; /* A pipe that SIGCHLD writes to, so that poll returns. */

struct log {
  const char *path;
  int descriptor; /* -1 while it cannot be written. */
  long long bytes, max_bytes;
  bool inside_line;
};

static void on_signal(int number) {
  int saved = errno;
  if (child > 0) kill((pid_t)child, number);
  errno = saved;
}

static void on_child(int number) {
  int saved = errno;
  (void)number;
  (void)!write(woken[1], "", 1);
  errno = saved;
}

static void handle(int number, void (*handler)(int)) {
  struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
  sigemptyset(&action.sa_mask);
  sigaction(number, &action, NULL);
}

static long long now_ms(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000LL + now.tv_nsec / 1000000;
}

/* Writes all of it, or returns false. */
static bool write_all(int descriptor, const char *data, size_t size) {
  while (size > 0) {
    ssize_t written = write(descriptor, data, size);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 && errno == EAGAIN) {
      struct pollfd writable = {.fd = descriptor, .events = POLLOUT};
      poll(&writable, 1, -1);
      continue;
    }
    if (written < 0) return false;
    data += written;
    size -= (size_t)written;
  }
  return true;
}

static void open_log(struct log *log) {
  log->descriptor = open(log->path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0644);
  log->bytes = 0;
}

static void rotate(struct log *log) {
  char older[4096];
  if (log->descriptor >= 0) close(log->descriptor);
  if (snprintf(older, sizeof older, "%s.1", log->path) < (int)sizeof older) rename(log->path, older);
  open_log(log);
}

static void append(struct log *log, const char *data, size_t size) {
  while (size > 0) {
    size_t part = size;
    if (log->bytes + (long long)size > log->max_bytes) {
      /* Up to the end of this line; a line longer than a whole file is cut. */
      const char *end = memchr(data, '\n', size);
      if (!log->inside_line || log->bytes >= 2 * log->max_bytes) {
        if (log->bytes > 0) rotate(log);
      }
      part = end ? (size_t)(end - data) + 1 : size;
    }
    if (log->descriptor < 0) open_log(log);
    /* A full disk loses this part, and takes the next one once there is room. */
    if (log->descriptor >= 0) (void)write_all(log->descriptor, data, part);
    log->bytes += (long long)part;
    log->inside_line = data[part - 1] != '\n';
    data += part;
    size -= part;
  }
}

/* Copies what has arrived; returns false at the end of the stream. */
static bool copy(int from, int to, struct log *log) {
  static char data[CHUNK_BYTES];
  ssize_t size = read(from, data, sizeof data);
  if (size < 0) return errno == EINTR || errno == EAGAIN;
  if (size == 0) return false;
  append(log, data, (size_t)size);
  /* When the relay's own output is closed, the command's is too: its next write ends it, as without a relay. */
  return write_all(to, data, (size_t)size);
}

/* Collects ended processes, which are the command or, for the first process of a container, any; true for the command. */
static bool ended(int *status) {
  int one;
  pid_t pid;
  bool found = false;
  while ((pid = waitpid(-1, &one, WNOHANG)) > 0)
    if (pid == (pid_t)child) {
      *status = one;
      found = true;
    }
  return found;
}

static int relay(int out, int err, struct log *log) {
  struct pollfd watched[] = {{out, POLLIN, 0}, {err, POLLIN, 0}, {woken[0], POLLIN, 0}};
  int targets[] = {STDOUT_FILENO, STDERR_FILENO};
  long long until_ms = -1; /* Set when the command has ended. */
  int status = 0;
  while (watched[0].fd >= 0 || watched[1].fd >= 0 || until_ms < 0) {
    int wait_ms = until_ms < 0 ? -1 : (int)(until_ms - now_ms());
    if (until_ms >= 0 && wait_ms <= 0) break;
    if (poll(watched, 3, wait_ms) < 0 && errno != EINTR) break;
    for (int index = 0; index < 2; index++)
      if (watched[index].revents && !copy(watched[index].fd, targets[index], log)) {
        close(watched[index].fd);
        watched[index].fd = -1;
      }
    if (watched[2].revents) {
      char bytes[64];
      (void)!read(woken[0], bytes, sizeof bytes);
      if (ended(&status)) until_ms = now_ms() + DRAIN_MS;
    }
  }
  return status;
}

static void write_end(const char *path, int code) {
  char temporary[4096], text[32];
  if (snprintf(temporary, sizeof temporary, "%s.new", path) >= (int)sizeof temporary) return;
  int descriptor = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644);
  if (descriptor < 0) return;
  int size = snprintf(text, sizeof text, "exit_code=%d\n", code);
  bool whole = write_all(descriptor, text, (size_t)size);
  if (close(descriptor) == 0 && whole) rename(temporary, path);
}

static int usage(const char *problem) {
  fprintf(stderr, "perfd-relay: %s\n", problem);
  fputs("usage: perfd-relay --log FILE [--max-bytes N] [--end FILE] -- COMMAND [ARGUMENT...]\n", stderr);
  return USAGE;
}

static void start(char **command, const int out[2], const int err[2]) {
  pid_t parent = getpid();
  /* A signal that arrives before the command's number is known waits until it is. */
  sigset_t all, before;
  sigfillset(&all);
  sigprocmask(SIG_BLOCK, &all, &before);
  pid_t pid = fork();
  if (pid != 0) {
    child = pid;
    sigprocmask(SIG_SETMASK, &before, NULL);
    return;
  }
  for (size_t index = 0; index < sizeof PASSED_ON / sizeof *PASSED_ON; index++) handle(PASSED_ON[index], SIG_DFL);
  handle(SIGCHLD, SIG_DFL);
  handle(SIGPIPE, SIG_DFL);
  handle(SIGXFSZ, SIG_DFL);
  sigprocmask(SIG_SETMASK, &before, NULL);
  /* A relay that is killed takes the command with it, as the runtime expects of the container's process. */
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(CANNOT_RUN);
  dup2(out[1], STDOUT_FILENO);
  dup2(err[1], STDERR_FILENO);
  execvp(command[0], command);
  int code = errno == ENOENT ? NOT_FOUND : CANNOT_RUN;
  fprintf(stderr, "perfd-relay: %s: %s\n", command[0], strerror(errno));
  _exit(code);
}

int main(int count, char **arguments) {
  struct log log = {.descriptor = -1, .max_bytes = 64LL << 20};
  const char *end_path = NULL;
  char **command = NULL;
  for (int index = 1; index < count && !command; index++) {
    const char *name = arguments[index];
    const char *value = index + 1 < count ? arguments[index + 1] : NULL;
    if (strcmp(name, "--") == 0) {
      command = arguments + index + 1;
    } else if (!value) {
      return usage("an option without its value, or no --");
    } else if (strcmp(name, "--log") == 0) {
      log.path = value;
    } else if (strcmp(name, "--end") == 0) {
      end_path = value;
    } else if (strcmp(name, "--max-bytes") == 0) {
      log.max_bytes = atoll(value);
    } else {
      return usage("an unknown option");
    }
    index++;
  }
  if (!log.path || !command || !command[0]) return usage("--log or the command is missing");
  if (log.max_bytes < 1) return usage("--max-bytes must be 1 or greater");

  int out[2], err[2];
  if (pipe2(out, O_CLOEXEC) || pipe2(err, O_CLOEXEC) || pipe2(woken, O_CLOEXEC | O_NONBLOCK)) {
    perror("perfd-relay: pipe");
    return CANNOT_RUN;
  }
  handle(SIGCHLD, on_child);
  handle(SIGPIPE, SIG_IGN);
  handle(SIGXFSZ, SIG_IGN);
  for (size_t index = 0; index < sizeof PASSED_ON / sizeof *PASSED_ON; index++) handle(PASSED_ON[index], on_signal);
  if (end_path) unlink(end_path);
  open_log(&log);
  start(arguments + (command - arguments), out, err);
  if (child < 0) {
    perror("perfd-relay: fork");
    return CANNOT_RUN;
  }
  close(out[1]);
  close(err[1]);
  int status = relay(out[0], err[0], &log);
  int code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  if (end_path) write_end(end_path, code);
  if (WIFSIGNALED(status)) {
    struct rlimit none = {0, 0};
    setrlimit(RLIMIT_CORE, &none);
    handle(WTERMSIG(status), SIG_DFL);
    raise(WTERMSIG(status)); /* Without effect on the first process of a container, which then exits below. */
  }
  return code;
}
