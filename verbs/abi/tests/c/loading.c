/* Lists the host's addresses, resolves addresses and names, and connects through the libraries. All this must work
 * regardless of the way in which the libraries were loaded. */
#include "harness.h"
#include <ifaddrs.h>
#include <net/if.h>

/* The device's address appears once, together with the kernel's. */
static void interfaces(void)
{
	struct ifaddrs *list;
	struct sockaddr_in own = own_address(0);
	int ours = 0, others = 0;
	OK(getifaddrs(&list));
	for (struct ifaddrs *i = list; i; i = i->ifa_next) {
		if (strcmp(i->ifa_name, "urnic0")) {
			others++;
			continue;
		}
		ours++;
		CHECK(i->ifa_addr->sa_family == AF_INET && (i->ifa_flags & IFF_UP));
		CHECK(((struct sockaddr_in *)i->ifa_addr)->sin_addr.s_addr == own.sin_addr.s_addr);
	}
	IS(ours, 1);
	CHECK(others > 0);
	freeifaddrs(list);
}

static void names(void)
{
	struct sockaddr_in own = own_address(0);
	struct addrinfo hints = { .ai_family = AF_INET, .ai_socktype = SOCK_STREAM, .ai_flags = AI_ADDRCONFIG }, *found;
	struct rdma_addrinfo *rai;
	char text[64];
	CHECK(inet_ntop(AF_INET, &own.sin_addr, text, sizeof text));
	OK(getaddrinfo(text, "7", &hints, &found));
	CHECK(((struct sockaddr_in *)found->ai_addr)->sin_addr.s_addr == own.sin_addr.s_addr);
	freeaddrinfo(found);
	OK(getaddrinfo("localhost", NULL, NULL, &found));
	freeaddrinfo(found);
	OK(rdma_getaddrinfo(text, "7", NULL, &rai));
	CHECK(((struct sockaddr_in *)rai->ai_dst_addr)->sin_addr.s_addr == own.sin_addr.s_addr);
	rdma_freeaddrinfo(rai);
}

static void connection(void)
{
	struct link l;
	struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_READ };
	link_up(&l);
	strcpy(l.memory[1], "there");
	wr.wr.rdma.remote_addr = (uintptr_t)l.memory[1];
	wr.wr.rdma.rkey = l.mr[1]->rkey;
	OK(post(l.client, l.mr[0], 0, 8, &wr));
	CHECK(completion(l.cq[0]).status == IBV_WC_SUCCESS && !strcmp(l.memory[0], "there"));
	link_down(&l);
}

int main(void)
{
	for (int round = 0; round < 2; round++) {
		interfaces();
		names();
		connection();
	}
	puts("done");
	return 0;
}
