/*
 * What urnic has beside the functions of libibverbs and librdmacm. docs/run.md ("urnic's own functions") explains it.
 *
 * Link the program to liburnic.so, or define URNIC_WEAK before this header is included: then the program also starts
 * where there is no urnic, and the functions are null unless `urnic run` has started it.
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

/* Who begins the MPA start-up, whichever end has connected (RFC 5044, section 7.1). */
enum urnic_role {
	/* This end sends the MPA Request. */
	URNIC_INITIATOR = 0,
	/* The peer does, and this end replies. */
	URNIC_RESPONDER = 1,
};

/*
 * Prepares an identifier for a connected TCP socket, in place of rdma_resolve_addr and rdma_resolve_route: ties it to the
 * device, so that rdma_create_qp can follow, and gives it the socket's addresses. There is no event.
 *
 * Returns 0, or -1 and errno: EINVAL (no identifier, or it is bound), EBADF, ENOTSOCK, ENOTCONN, EAFNOSUPPORT.
 */
URNIC_FUNCTION int urnic_resolve_socket(struct rdma_cm_id *id, int fd);

/*
 * Makes a connected TCP socket, on which the program has spoken a protocol of its own, the connection of an identifier's
 * queue pair. The two programs agree on where their own octets end and who is the initiator.
 *
 * `already_read`: `n` octets that the program has read off the socket behind its own protocol; a responder's buffer may
 * have the MPA Request, or a part of it. `param` is as for rdma_connect (URNIC_INITIATOR) or rdma_accept
 * (URNIC_RESPONDER), and may be null.
 *
 * Events are those of a connection: RDMA_CM_EVENT_ESTABLISHED at both ends, with the peer's private data, or
 * RDMA_CM_EVENT_REJECTED, RDMA_CM_EVENT_UNREACHABLE, RDMA_CM_EVENT_CONNECT_ERROR; a synchronous identifier waits for them
 * here. Ten seconds after the call the start-up has failed.
 *
 * The connection has a descriptor of its own. The program's stays the program's, whatever this returns: close it, and
 * neither read nor write it. What is unsent goes before the start-up; the socket ends with the connection.
 *
 * Returns 0, or -1 and errno, and the socket is as it was: EOPNOTSUPP (the device is on a port and has no sockets of the
 * kernel's), EBADF, ENOTSOCK, EPROTONOSUPPORT (not TCP), ENOTCONN, EPIPE (shut down), EINVAL (it listens, or an argument
 * is wrong, or the queue pair is not as created), EADDRNOTAVAIL (the device keeps to another address), ENOMEM (too many
 * descriptors). Of a synchronous identifier also as rdma_connect, when the start-up has failed.
 */
URNIC_FUNCTION int urnic_convert(struct rdma_cm_id *id, int fd, int role, const void *already_read, size_t n,
				 struct rdma_conn_param *param);

#ifdef __cplusplus
}
#endif

#endif
