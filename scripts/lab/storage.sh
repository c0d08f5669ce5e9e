# The storage cases of scripts/interop-siw, which sources this file. The guest's kernel is the initiator, and a target
# on urnic serves it. If the target is killed and starts again, the initiator reconnects by itself.

readonly IQN=iqn.2026-01.test:disk INITIATOR=iqn.2026-01.test:guest ISER_PORT=3261
readonly NQN=nqn.2016-06.io.spdk:cnode1 HOST_ID=8f1a5f2e-2b5c-4c1e-9d43-0c7f5a6f1b11 DISK_ID=3d2a9a52-7c56-4a5e-8c0a-5b7a1f1d6c02

guest_storage() {
    guest 'mkdir -p /etc/iscsi /var/lock /run/lock /mnt; [ -e /run/storage ] || for module in /lib/storage/*; do insmod "$module" 2>/dev/null; done; : >/run/storage; [ -e /sys/module/ib_iser ]'
}
# wait_in_guest SECONDS COMMAND: waits until the command succeeds.
wait_in_guest() { guest "i=0; until $2; do [ \$i -lt $(($1 * 5)) ] || exit 1; usleep 200000; i=\$((i + 1)); done"; }

# --- iSER: tgtd ---------------------------------------------------------------------------------------------------------
start_tgtd() {
    local control=$(($$ % 30000)) admin tries=0 words
    mkdir -p /var/run/tgtd
    node_start "$out" "$urnic" run -- tgtd -f -C $control --iser "port=$ISER_PORT,buf_sz_kb=2048,pool_sz_mb=64"
    admin="tgtadm -C $control"
    until $admin --op show --mode sys 2>/dev/null | grep -q 'iser: ready'; do
        [ $((tries += 1)) -lt 200 ] && kill -0 "$node" || return 1
        sleep 0.1
    done
    for words in "--op new --mode target --tid 1 -T $IQN" "--op new --mode logicalunit --tid 1 --lun 1 -b $run/disk" \
        "--op bind --mode target --tid 1 -I ALL" "--op bind --mode target --tid 1 -Q $INITIATOR"; do
        $admin --lld iser $words
    done
}
iser_initiator() {
    truncate -s 64M "$run/disk"
    start_tgtd
    guest_storage
    guest "echo InitiatorName=$INITIATOR >/etc/iscsi/initiatorname.iscsi; killall iscsid 2>/dev/null; iscsid &&
        iscsiadm -m node -o new -T $IQN -p $HOST:$ISER_PORT -I iser >/dev/null && iscsiadm -m node -T $IQN -p $HOST:$ISER_PORT -l"
    wait_in_guest 30 '[ -b /dev/sda ]'
    # Fills the disk with lines that all differ. Writes and reads bypass the cache.
    guest 'seq 1 9000000 | head -c 67108864 >/tmp/content
        dd if=/tmp/content of=/dev/sda bs=256k oflag=direct 2>/dev/null && dd if=/dev/sda bs=256k iflag=direct 2>/dev/null | cmp - /tmp/content && md5sum </tmp/content | cut -d " " -f 1' | tee "$run/sum"
    [ "$(md5sum <"$run/disk" | cut -d ' ' -f 1)" = "$(tail -n 1 "$run/sum")" ]
    kill -KILL "$node"
    wait "$node" || true
    start_tgtd
    guest 'dd if=/dev/sda bs=256k iflag=direct 2>/dev/null | cmp - /tmp/content'
    guest "iscsiadm -m node -T $IQN -p $HOST:$ISER_PORT -u; rm -f /tmp/content; killall iscsid"
    kill -KILL "$node"
}

# --- NVMe over RDMA: SPDK -----------------------------------------------------------------------------------------------
start_nvmf() {
    local rpc="python3 $spdk/scripts/rpc.py -s $run/rpc.sock" tries=0 words
    rm -f "$run/rpc.sock"
    LD_LIBRARY_PATH=$spdk/build/lib node_start "$out" "$urnic" run -- "$spdk/build/bin/nvmf_tgt" -m 0x1 -s 256 -r "$run/rpc.sock"
    until $rpc spdk_get_version >/dev/null 2>&1; do
        [ $((tries += 1)) -lt 100 ] && kill -0 "$node" || return 1
        sleep 0.1
    done
    for words in "nvmf_create_transport -t RDMA" "bdev_malloc_create -b Malloc0 -u $DISK_ID 64 512" \
        "nvmf_create_subsystem $NQN -a -s SPDK01" "nvmf_subsystem_add_ns $NQN Malloc0" \
        "nvmf_subsystem_add_listener $NQN -t rdma -a $HOST -s 4420"; do
        $rpc $words
    done
}
nvme_initiator() {
    mountpoint -q /dev/hugepages || mount -t hugetlbfs none /dev/hugepages
    start_nvmf
    guest_storage
    guest "echo -n 'transport=rdma,traddr=$HOST,trsvcid=4420,nqn=$NQN,hostnqn=nqn.2014-08.org.nvmexpress:uuid:$HOST_ID,hostid=$HOST_ID,nr_io_queues=1,reconnect_delay=2' >/dev/nvme-fabrics"
    wait_in_guest 30 '[ -b /dev/nvme0n1 ]'
    guest 'mke2fs /dev/nvme0n1 >/dev/null && mount -t ext4 /dev/nvme0n1 /mnt &&
        fio --name=verified --directory=/mnt --size=24m --rw=randwrite --bsrange=512-128k --bs_unaligned=0 --direct=1 --verify=crc32c --ioengine=psync | grep -E "err=|verify"; umount /mnt' | tee "$run/fio"
    grep -q 'err= 0' "$run/fio"
    # The new target has new memory, so the data is written again before it is read back.
    kill -KILL "$node"
    wait "$node" || true
    start_nvmf
    guest 'seq 1 2000000 | head -c 8388608 >/tmp/content
        dd if=/tmp/content of=/dev/nvme0n1 bs=64k oflag=direct 2>/dev/null && dd if=/dev/nvme0n1 bs=64k count=128 iflag=direct 2>/dev/null | cmp - /tmp/content'
    guest 'echo 1 >/sys/class/nvme/nvme0/delete_controller; rm -f /tmp/content'
    kill -KILL "$node"
}

storage_cases() {
    if command -v tgtd >/dev/null && command -v tgtadm >/dev/null; then
        try "iSER: siw's kernel on tgtd, 64 MiB; the target killed and back" iser_initiator
    else
        say "without iSER: tgt is not installed"
    fi
    if [ -n "$spdk" ]; then
        try "NVMe: siw's kernel on nvmf_tgt, a file system; the target killed and back" nvme_initiator
    else
        say "without NVMe: no --spdk DIR"
    fi
}
