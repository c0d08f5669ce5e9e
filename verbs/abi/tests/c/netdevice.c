/* Checks the device's interface, through the requests of netdevice(7), and by names and indices.
 *
 *   netdevice IPV4 MASK BROADCAST MTU | "-"    the values of the interface; "-" if it has no IPv4 address
 *   netdevice none                             there is no interface */
#include "harness.h"
#include <net/if.h>
#include <net/if_arp.h>
#include <sys/ioctl.h>

static int sock;

static int ask(unsigned long what, const char *name, struct ifreq *request)
{
	memset(request, 0xee, sizeof *request);
	strncpy(request->ifr_name, name, IFNAMSIZ);
	errno = 0;
	return ioctl(sock, what, request);
}

static bool is(const struct sockaddr *address, const char *ip)
{
	char text[64];
	const struct sockaddr_in *sin = (const void *)address;
	return sin->sin_family == AF_INET && inet_ntop(AF_INET, &sin->sin_addr, text, sizeof text) && !strcmp(text, ip);
}

/* Checks that the kernel's answers stay as they are. */
static void others(void)
{
	struct ifreq request;
	char name[IF_NAMESIZE];
	unsigned lo = if_nametoindex("lo");
	CHECK(lo && if_indextoname(lo, name) && !strcmp(name, "lo"));
	OK(ask(SIOCGIFADDR, "lo", &request));
	CHECK(is(&request.ifr_addr, "127.0.0.1"));
	OK(ask(SIOCGIFINDEX, "lo", &request));
	CHECK(request.ifr_ifindex == (int)lo);
	OK(ask(SIOCGIFFLAGS, "lo", &request));
	CHECK(request.ifr_flags & IFF_LOOPBACK);
	FAILS(ask(SIOCGIFADDR, "no-such-one", &request), ENODEV);
	CHECK(!if_nametoindex("no-such-one") && errno == ENODEV);
	CHECK(!if_indextoname(0x7fffff00, name) && errno == ENXIO);
	memset(&request, 0, sizeof request);
	request.ifr_ifindex = 0x7fffff00;
	FAILS(ioctl(sock, SIOCGIFNAME, &request), ENODEV);
	FAILS(ioctl(-1, SIOCGIFADDR, &request), EBADF);
	FAILS(ioctl(sock, SIOCGIFADDR, NULL), EFAULT);
	int waiting = -1;
	OK(ioctl(sock, FIONREAD, &waiting));
	IS(waiting, 0);
}

/* Counts how often a name is in the list of all interfaces. */
static int listed(const char *wanted, unsigned index)
{
	int n = 0;
	struct if_nameindex *list = SOME(if_nameindex());
	for (struct if_nameindex *i = list; i->if_index || i->if_name; i++)
		if (!strcmp(i->if_name, wanted)) {
			CHECK(i->if_index == index);
			n++;
		}
	if_freenameindex(list);
	return n;
}

/* Counts how often a name is among the interfaces with IPv4 addresses, with room for `room` of them. */
static int configured(const char *wanted, const char *ip, int room)
{
	struct ifreq all[64];
	memset(all, 0xee, sizeof all);
	struct ifconf list = { .ifc_len = room * (int)sizeof all[0], .ifc_req = all };
	OK(ioctl(sock, SIOCGIFCONF, &list));
	CHECK(list.ifc_len <= room * (int)sizeof all[0] && list.ifc_len % sizeof all[0] == 0);
	int n = 0, found = list.ifc_len / sizeof all[0];
	for (int i = 0; i < found; i++)
		if (!strcmp(all[i].ifr_name, wanted)) {
			CHECK(is(&all[i].ifr_addr, ip));
			n++;
		}
	/* The memory after the entries is untouched. */
	for (unsigned char *at = (void *)(all + found); at < (unsigned char *)(all + 64); at++)
		CHECK(*at == 0xee);
	if (room == 64) {
		struct ifconf size = { .ifc_len = 0, .ifc_req = NULL };
		OK(ioctl(sock, SIOCGIFCONF, &size));
		IS(size.ifc_len, list.ifc_len);
	}
	return n;
}

/* Compares the interface with what the device reports for its addresses. */
static void of_the_device(unsigned index, bool opened)
{
	struct ibv_device **list = SOME(ibv_get_device_list(NULL));
	struct ibv_context *verbs = SOME(ibv_open_device(list[0]));
	struct ibv_gid_entry entries[16];
	ssize_t n = ibv_query_gid_table(verbs, entries, 16, 0);
	char name[IF_NAMESIZE];
	CHECK(n > 0);
	for (ssize_t i = 0; i < n; i++) {
		CHECK(!opened || entries[i].ndev_ifindex == index);
		CHECK(if_indextoname(entries[i].ndev_ifindex, name));
	}
	OK(ibv_close_device(verbs));
	ibv_free_device_list(list);
}

int main(int argc, char **argv)
{
	struct ifreq request;
	char name[IF_NAMESIZE];
	sock = socket(AF_INET, SOCK_DGRAM, 0);
	CHECK(sock >= 0);
	if (argc == 2 && !strcmp(argv[1], "none")) {
		others();
		CHECK(!if_nametoindex("urnic0"));
		FAILS(ask(SIOCGIFADDR, "urnic0", &request), ENODEV);
		IS(listed("urnic0", 0), 0);
		IS(listed("lo", if_nametoindex("lo")), 1);
		IS(configured("urnic0", "", 64), 0);
		of_the_device(0, false);
		puts("done");
		return 0;
	}
	unsigned index = if_nametoindex("urnic0");
	CHECK(index && (int)index > 0);
	CHECK(if_indextoname(index, name) == name && !strcmp(name, "urnic0"));
	IS(listed("urnic0", index), 1);
	IS(listed("lo", if_nametoindex("lo")), 1);
	OK(ask(SIOCGIFINDEX, "urnic0", &request));
	CHECK(request.ifr_ifindex == (int)index);
	memset(&request, 0, sizeof request);
	request.ifr_ifindex = index;
	OK(ioctl(sock, SIOCGIFNAME, &request));
	CHECK(!strcmp(request.ifr_name, "urnic0"));
	OK(ask(SIOCGIFFLAGS, "urnic0", &request));
	IS(request.ifr_flags, IFF_UP | IFF_RUNNING | IFF_BROADCAST | IFF_MULTICAST);
	FAILS(ask(SIOCSIFMTU, "urnic0", &request), ENODEV);
	others();
	if (argc == 2) {
		FAILS(ask(SIOCGIFADDR, "urnic0", &request), EADDRNOTAVAIL);
		FAILS(ask(SIOCGIFNETMASK, "urnic0", &request), EADDRNOTAVAIL);
		IS(configured("urnic0", "", 64), 0);
		of_the_device(index, true);
		puts("done");
		return 0;
	}
	OK(ask(SIOCGIFADDR, "urnic0", &request));
	CHECK(is(&request.ifr_addr, argv[1]) && !strcmp(request.ifr_name, "urnic0"));
	OK(ask(SIOCGIFNETMASK, "urnic0", &request));
	CHECK(is(&request.ifr_netmask, argv[2]));
	OK(ask(SIOCGIFBRDADDR, "urnic0", &request));
	CHECK(is(&request.ifr_broadaddr, argv[3]));
	OK(ask(SIOCGIFMTU, "urnic0", &request));
	IS(request.ifr_mtu, atoi(argv[4]));
	OK(ask(SIOCGIFHWADDR, "urnic0", &request));
	IS(request.ifr_hwaddr.sa_family, ARPHRD_ETHER);
	/* The EUI-64 that the node's GUID consists of. */
	struct ibv_device **list = SOME(ibv_get_device_list(NULL));
	uint64_t guid = ibv_get_device_guid(list[0]);
	const unsigned char *eui = (void *)&guid, *mac = (void *)request.ifr_hwaddr.sa_data;
	CHECK((mac[0] ^ 2) == eui[0] && !memcmp(mac + 1, eui + 1, 2) && !memcmp(mac + 3, eui + 5, 3));
	ibv_free_device_list(list);
	IS(configured("urnic0", argv[1], 64), 1);
	IS(configured("lo", "127.0.0.1", 64), 1);
	IS(configured("urnic0", argv[1], 1), 1);
	IS(configured("urnic0", argv[1], 0), 0);
	of_the_device(index, true);
	puts("done");
	return 0;
}
