/*
 * urnic's functions in addition to those of libibverbs and librdmacm. docs/run.md ("urnic's own functions") explains
 * them.
 *
 * Link the program to liburnic.so, or define URNIC_WEAK before including this header. With URNIC_WEAK, the program
 * also starts on hosts without urnic, and the functions are null unless `urnic run` has started the program.
 */
#ifndef URNIC_H
#define URNIC_H

#include <stddef.h>

#include <rdma/rdma_cma.h>

#ifdef __cplusplus
extern "C" {
#endif

#ifdef URNIC_WEAK
#define URNIC_FUNCTION __attribute__((weak))
#else
#define URNIC_FUNCTION
#endif

/* Role in the MPA start-up (RFC 5044, section 7.1). It does not depend on which end opened the TCP connection. */
enum urnic_role {
	/* This end sends the MPA Request. */
	URNIC_INITIATOR = 0,
	/* The peer sends the MPA Request, and this end replies. */
	URNIC_RESPONDER = 1,
};

/*
 * Prepares an identifier for a connected TCP socket, in place of rdma_resolve_addr and rdma_resolve_route: ties it to
 * the device, so that rdma_create_qp can follow, and sets its addresses to the socket's. Causes no event.
 *
 * Returns 0, or -1 and errno: EINVAL (not an identifier, or bound already), EBADF, ENOTSOCK, ENOTCONN, EAFNOSUPPORT,
 * EMFILE (no descriptor is left), ENODEV (no device, or a forked child).
 */
URNIC_FUNCTION int urnic_resolve_socket(struct rdma_cm_id *id, int fd);

/*
 * Turns a connected TCP socket, on which the program has spoken a protocol of its own, into the connection of an
 * identifier's queue pair. The two programs must agree on where their own octets end and on which end is the
 * initiator.
 *
 * `already_read`: `n` octets that the program has read from the socket after the end of its own protocol. A
 * responder's buffer may contain the MPA Request, or a part of it. `param` is as for rdma_connect (URNIC_INITIATOR)
 * or rdma_accept (URNIC_RESPONDER), and may be null.
 *
 * The events are those of a connection: RDMA_CM_EVENT_ESTABLISHED at both ends, with the peer's private data, or
 * RDMA_CM_EVENT_REJECTED, RDMA_CM_EVENT_UNREACHABLE, RDMA_CM_EVENT_CONNECT_ERROR. With a synchronous identifier, this
 * function waits for them. A start-up that takes longer than ten seconds fails.
 *
 * The connection gets a descriptor of its own. The program keeps its descriptor and must close it, whatever this
 * function returns. Once the function has succeeded, the program must neither read nor write its descriptor. Octets
 * that are not sent yet go out before the start-up. The end of the connection ends the TCP connection too, even if the
 * program still has its descriptor open.
 *
 * Returns 0, or -1 and errno. These errors leave the socket unchanged: EOPNOTSUPP (the device is on a port, and does
 * not use the kernel's sockets), EBADF, ENOTSOCK, EPROTONOSUPPORT (not TCP), ENOTCONN, EPIPE (shut down), EINVAL (a
 * listening socket, a wrong argument, or a queue pair that is not in its initial state), EADDRNOTAVAIL (the device is
 * restricted to another address), EMFILE (no descriptor is left), ENODEV (a forked child). With a synchronous
 * identifier, a start-up that fails causes the errors of rdma_connect.
 */
URNIC_FUNCTION int urnic_convert(struct rdma_cm_id *id, int fd, int role, const void *already_read, size_t n,
				 struct rdma_conn_param *param);

#ifdef __cplusplus
}
#endif

#endif
