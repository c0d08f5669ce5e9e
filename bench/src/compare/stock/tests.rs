use super::*;

#[test]
fn perftest_tells_half_of_a_sends_round_trip() {
    let said = "
---------------------------------------------------------------------------------------
 #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec]
 8       20000          0.85           12.50        0.91     	       0.93        	0.10   		1.25    		3.50
---------------------------------------------------------------------------------------
";
    let sample = of_perftest(said, "ib_send_lat", Quantity::Latency, 8).expect("a result");
    assert_eq!(sample.value, 1.82);
    assert_eq!(sample.rtt_us, Some(Latency { min: 1.7, p50: 1.82, p99: 2.5, p999: 7.0, max: 25.0 }));
    let sample = of_perftest(said, "ib_read_lat", Quantity::Latency, 8).expect("a result");
    assert_eq!(sample.value, 0.91);
    assert!(of_perftest(said, "ib_read_lat", Quantity::Latency, 64).is_err());
}

#[test]
fn perftest_tells_bandwidth_and_rate() {
    let said = "
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 65536      5000             42.00              41.50		   0.079155
";
    assert_eq!(of_perftest(said, "ib_write_bw", Quantity::Bandwidth, 65536).expect("a result").value, 41.5);
    assert_eq!(of_perftest(said, "ib_write_bw", Quantity::Rate, 65536).expect("a result").value, 0.079155);
}

#[test]
fn fi_pingpong_tells_half_a_round_trip() {
    let said = "bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec\n\
                8       20k     =20k     312k        0.35s      0.91       8.75       0.11\n";
    assert_eq!(of_fi_pingpong(said).expect("a result").value, 17.5);
    assert!(of_fi_pingpong("fi_getinfo(): No data available").is_err());
}

#[test]
fn sockperf_tells_percentiles() {
    let said = "
sockperf: Summary: Round trip is 17.344 usec
sockperf: ---> <MAX> observation =  181.004
sockperf: ---> percentile 99.999 =  181.004
sockperf: ---> percentile 99.990 =   69.108
sockperf: ---> percentile 99.900 =   40.500
sockperf: ---> percentile 99.000 =   25.250
sockperf: ---> percentile 90.000 =   18.125
sockperf: ---> percentile 50.000 =   16.875
sockperf: ---> <MIN> observation =   14.375
";
    let rtt = of_sockperf(said).expect("a result").rtt_us;
    let expected = Latency { min: 14.375, p50: 16.875, p99: 25.25, p999: 40.5, max: 181.004 };
    assert_eq!(rtt, Some(expected));
    assert!(of_sockperf("sockperf: ERROR: connection refused").is_err());
}
