/*
 * Measures the kernel's TCP in a plain C program, for comparison with `urnic perf` on the kernel's sockets: a
 * ping-pong whose ends spin, another whose server sleeps, and a stream of messages.
 *
 *   sockets server ADDRESS PORT             serves one client, then ends
 *   sockets ping ADDRESS PORT SIZE N        N round trips of SIZE octets
 *   sockets wake ADDRESS PORT SIZE N        the same, but before each round the server sleeps in recv() for a while
 *   sockets stream ADDRESS PORT SIZE N      N messages of SIZE octets one way, then one octet back
 *
 * Each end prints one JSON object, with the processor time of its rounds or messages in seconds. For `ping`, this time
 * includes 1,000 rounds of warm-up. The client's object also contains the round-trip times in microseconds, or the rate
 * in Gbit/s. An 8-byte RDMA Write is 28 octets on the stream: length 2, header 14, data 8, CRC 4 (RFC 5044, RFC 5041).
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum kind { PING, WAKE, STREAM };
enum { SILENCE_US = 5000, WARMUP = 1000, LARGEST = 1 << 20, READ = 256 << 10, TRIES = 500 };

struct task {
	uint32_t kind, size;
	uint64_t count;
};

static char buffer[LARGEST];

static void die(const char *what)
{
	fprintf(stderr, "sockets: %s: %s\n", what, strerror(errno));
	exit(1);
}

static uint64_t now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Receives `n` octets; if `spinning`, without sleeping. */
static void take(int fd, char *into, size_t n, int spinning)
{
	while (n > 0) {
		ssize_t got = recv(fd, into, n, spinning ? MSG_DONTWAIT : 0);

		if (got == 0) {
			errno = ECONNRESET;
			die("the peer has gone");
		}
		if (got < 0) {
			if (errno != EAGAIN && errno != EINTR)
				die("recv");
			continue;
		}
		into += got;
		n -= (size_t)got;
	}
}

static void give(int fd, const char *from, size_t n, int spinning)
{
	while (n > 0) {
		ssize_t sent = send(fd, from, n, MSG_NOSIGNAL | (spinning ? MSG_DONTWAIT : 0));

		if (sent < 0) {
			if (errno != EAGAIN && errno != EINTR)
				die("send");
			continue;
		}
		from += sent;
		n -= (size_t)sent;
	}
}

static double seconds(struct timeval t)
{
	return (double)t.tv_sec + (double)t.tv_usec / 1e6;
}

static struct rusage started;

static void start(void)
{
	getrusage(RUSAGE_SELF, &started);
}

static void print_times(void)
{
	struct rusage ended;

	getrusage(RUSAGE_SELF, &ended);
	printf("\"user_s\": %.6f, \"system_s\": %.6f}\n", seconds(ended.ru_utime) - seconds(started.ru_utime),
	       seconds(ended.ru_stime) - seconds(started.ru_stime));
}

/* Returns the number of rounds that are not counted. It is 0 if each round follows a silence, because then every
 * round is equally cold. */
static uint64_t warmup(struct task task)
{
	return task.kind == PING ? WARMUP : 0;
}

static void serve(int fd)
{
	struct task task;
	uint64_t left;

	take(fd, (char *)&task, sizeof(task), 0);
	if (task.size == 0 || task.size > LARGEST) {
		errno = EINVAL;
		die("size");
	}
	start();
	if (task.kind == STREAM) {
		for (left = task.size * task.count; left > 0;) {
			ssize_t got = recv(fd, buffer, left < READ ? left : READ, 0);

			if (got <= 0)
				die("recv");
			left -= (uint64_t)got;
		}
		give(fd, buffer, 1, 0);
	} else {
		for (left = task.count + warmup(task); left > 0; left--) {
			take(fd, buffer, task.size, task.kind == PING);
			give(fd, buffer, task.size, 1);
		}
	}
	printf("{");
	print_times();
}

static int ascending(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

static void ping(int fd, struct task task)
{
	uint64_t *times = malloc(task.count * sizeof(*times)), round, mood = 0x5eed;

	if (times == NULL)
		die("memory");
	for (round = 0; round < task.count + warmup(task); round++) {
		uint64_t posted;

		if (task.kind == WAKE) {
			mood = mood * 6364136223846793005u + 1442695040888963407u;
			usleep((useconds_t)(mood >> 32) % SILENCE_US);
		}
		posted = now();
		give(fd, buffer, task.size, 1);
		take(fd, buffer, task.size, 1);
		if (round >= warmup(task))
			times[round - warmup(task)] = now() - posted;
	}
	qsort(times, task.count, sizeof(*times), ascending);
	printf("{\"rtt_us\": {\"p50\": %.3f, \"p99\": %.3f}, ", (double)times[task.count / 2] / 1e3,
	       (double)times[task.count * 99 / 100] / 1e3);
	free(times);
}

static void stream(int fd, struct task task)
{
	uint64_t begun = now(), left;

	for (left = task.count; left > 0; left--)
		give(fd, buffer, task.size, 0);
	take(fd, buffer, 1, 0);
	printf("{\"gbit_s\": %.4f, ", (double)(task.size * task.count) * 8 / (double)(now() - begun));
}

static int open_socket(int argc, char **argv)
{
	struct addrinfo hints = { .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST }, *found;
	int serves = strcmp(argv[1], "server") == 0, one = 1, fd, tries;

	if ((serves && argc != 4) || (!serves && argc != 6))
		return -1;
	if (getaddrinfo(argv[2], argv[3], &hints, &found) != 0) {
		errno = EINVAL;
		die("address");
	}
	for (tries = 0;; tries++) {
		if ((fd = socket(found->ai_family, SOCK_STREAM, 0)) < 0)
			die("socket");
		if (serves) {
			int listener = fd;

			setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
			if (bind(listener, found->ai_addr, found->ai_addrlen) != 0 || listen(listener, 1) != 0)
				die("listen");
			if ((fd = accept(listener, NULL, NULL)) < 0)
				die("accept");
			break;
		}
		if (connect(fd, found->ai_addr, found->ai_addrlen) == 0)
			break;
		if (errno != ECONNREFUSED || tries == TRIES)
			die("connect");
		close(fd);
		usleep(10000);
	}
	freeaddrinfo(found);
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	return fd;
}

int main(int argc, char **argv)
{
	const char *role = argc > 1 ? argv[1] : "";
	static const char *const kinds[] = { [PING] = "ping", [WAKE] = "wake", [STREAM] = "stream" };
	int serves = strcmp(role, "server") == 0, fd = -1;
	uint32_t kind = PING;

	while (kind <= STREAM && strcmp(role, kinds[kind]) != 0)
		kind++;
	if (serves || kind <= STREAM)
		fd = open_socket(argc, argv);
	if (fd >= 0 && serves) {
		serve(fd);
	} else if (fd >= 0 && atol(argv[4]) > 0 && atol(argv[4]) <= LARGEST && atoll(argv[5]) > 0) {
		struct task task = { kind, (uint32_t)atol(argv[4]), (uint64_t)atoll(argv[5]) };

		give(fd, (const char *)&task, sizeof(task), 0);
		start();
		if (kind == STREAM)
			stream(fd, task);
		else
			ping(fd, task);
		print_times();
	} else {
		fprintf(stderr, "usage: sockets server ADDRESS PORT | ping|wake|stream ADDRESS PORT SIZE N\n");
		return 2;
	}
	return 0;
}
