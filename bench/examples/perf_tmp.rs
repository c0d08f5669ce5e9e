//! tmp
use urnic_bench::perf::*;
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let get = |k: &str| a.iter().position(|x| x == k).map(|i| a[i + 1].clone());
    let mut c = urnic_config::Config::default();
    if let Some(m) = get("--mtu") { c.port.mtu = m.parse().unwrap(); }
    if let Some(m) = get("--progress") { c.engine.progress = urnic_config::Choice::from_word(&m).unwrap(); }
    if a.iter().any(|x| x == "--no-crc") { c.mpa.crc = false; }
    let link: Link = get("--port").unwrap_or("virtio_user".into()).parse().unwrap();
    let mut o = PerfOptions::new(get("--op").unwrap().parse().unwrap(), get("--mode").unwrap().parse().unwrap(), get("--size").unwrap().parse().unwrap());
    if let Some(n) = get("--iters") { o.amount = Amount::Iters(n.parse().unwrap()); }
    if let Some(n) = get("--seconds") { o.amount = Amount::Seconds(n.parse().unwrap()); }
    if let Some(n) = get("--qps") { o.qps = n.parse().unwrap(); }
    if let Some(n) = get("--window") { o.window = Some(n.parse().unwrap()); }
    if let Some(n) = get("--wait") { o.wait = Some(n.parse().unwrap()); }
    o.verify = a.iter().any(|x| x == "--verify");
    match run_pair(&c, link, &o, true) { Ok(r) => println!("{}", r.to_json()), Err(e) => { eprintln!("error: {e}"); std::process::exit(1) } }
}
