use urnic_bench::perf::{floor::*, Link, Mode, Amount};
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let link: Link = a[1].parse().unwrap(); let mode: Mode = a[2].parse().unwrap(); let size: usize = a[3].parse().unwrap();
    let mut o = FloorOptions::new(mode, size);
    if let Some(s) = a.get(4) { o.amount = Amount::Seconds(s.parse().unwrap()); }
    match run_floor(&urnic_config::Config::default(), link, &o, false) { Ok(r) => println!("{}", r.to_json()), Err(e) => { println!("{e}"); std::process::exit(1) } }
}
