//! The report: a self-contained page, and tables for a terminal.

use std::fmt::Write;

use comfy_table::{Table, presets};

use super::{
    plot::{Axis, Series, log_axis, plot},
    results::{Measurement, Outcome, Quantity, Results, who},
};

/// Returns the class of a measured program, which selects its colour and dashes.
fn class_of(name: &str) -> &'static str {
    match name {
        who::FLOOR => "floor dots",
        who::VIRTIO_WRITE => "virtio",
        who::VIRTIO_READ => "virtio dashes",
        who::VIRTIO_SEND => "virtio dots",
        who::WRITE_BW => "virtio dashes",
        who::VETH_WRITE => "veth",
        who::WRITE_BW_VETH => "veth dashes",
        who::TCP_SPIN => "tcp",
        who::TCP_BLOCK => "tcp dashes",
        who::UDP_SPIN => "udp",
        who::UDP_BLOCK => "udp dashes",
        who::IPERF => "tcp",
        _ => "tcp dashes",
    }
}

const STYLE: &str = "
:root{color-scheme:light dark;--bg:#fcfcfb;--ink:#1b1b19;--soft:#62625c;--grid:#e4e3de;--card:#f4f3ef;
--virtio:#2a6fc9;--veth:#0f8a5f;--tcp:#c8501e;--udp:#8a4fc0;--floor:#77766f;--pass:#0b7a3e;--fail:#c0231f}
@media(prefers-color-scheme:dark){:root{--bg:#191918;--ink:#f1f0ea;--soft:#a9a89f;--grid:#363632;--card:#232321;
--virtio:#6aa5f0;--veth:#3cc08f;--tcp:#f08a55;--udp:#bd8cf0;--floor:#9b9a92;--pass:#4cc883;--fail:#ff7a70}}
*{box-sizing:border-box}body{background:var(--bg);color:var(--ink);font:15px/1.5 system-ui,sans-serif;max-width:1000px;margin:2rem auto;padding:0 1.2rem}
h1{font-size:1.6rem;margin-bottom:.2rem}h2{font-size:1.15rem;margin:2.2rem 0 .4rem}p{margin:.4rem 0 .8rem}.soft,caption{color:var(--soft)}
.scroll{overflow-x:auto}table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}th{text-align:left;font-weight:600;color:var(--soft)}
th,td{padding:.32rem .7rem .32rem 0;border-bottom:1px solid var(--grid);vertical-align:top}td.n,th.n{text-align:right}
.pass{color:var(--pass);font-weight:600}.fail{color:var(--fail);font-weight:600}.note{background:var(--card);padding:.7rem 1rem;border-radius:6px}
svg{width:100%;height:auto;display:block}svg text{fill:var(--soft);font-size:13px}.grid{stroke:var(--grid)}
.line{fill:none;stroke-width:2.2;stroke-linejoin:round}.dashes{stroke-dasharray:7 4}.dots{stroke-dasharray:2 4}
.line.virtio{stroke:var(--virtio)}.line.veth{stroke:var(--veth)}.line.tcp{stroke:var(--tcp)}.line.udp{stroke:var(--udp)}.line.floor{stroke:var(--floor)}
.mark{stroke:var(--bg);stroke-width:1.5}.mark.virtio{fill:var(--virtio)}.mark.veth{fill:var(--veth)}.mark.tcp{fill:var(--tcp)}.mark.udp{fill:var(--udp)}.mark.floor{fill:none;stroke:none}
.legend{display:flex;flex-wrap:wrap;gap:.2rem 1.2rem}.legend span{display:inline-flex;align-items:center;gap:.4rem}svg.key{width:28px;flex:none}
";

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Formats a size in the largest unit that divides it.
fn size(n: u64) -> String {
    match n {
        n if n >= 1 << 20 && n % (1 << 20) == 0 => format!("{} MiB", n >> 20),
        n if n >= 1 << 10 && n % (1 << 10) == 0 => format!("{} KiB", n >> 10),
        n => format!("{n} B"),
    }
}

/// Formats a number with about three significant digits.
fn number(value: f64) -> String {
    match value.abs() {
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        v if v >= 0.1 => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}

fn of(results: &Results, quantity: Quantity) -> impl Iterator<Item = &Measurement> {
    results.measurements.iter().filter(move |m| m.quantity == quantity)
}

/// Formats a table; columns after the first `left` are numbers.
fn table(head: &[&str], left: usize, rows: impl Iterator<Item = Vec<String>>) -> String {
    let class = |i: usize| if i < left { "" } else { " class=n" };
    let mut html = String::from("<div class=scroll><table><tr>");
    for (i, cell) in head.iter().enumerate() {
        let _ = write!(html, "<th{}>{cell}</th>", class(i));
    }
    html.push_str("</tr>");
    for row in rows {
        html.push_str("<tr>");
        for (i, cell) in row.iter().enumerate() {
            let _ = write!(html, "<td{}>{cell}</td>", class(i));
        }
        html.push_str("</tr>");
    }
    html + "</table></div>"
}

fn latency_plot(results: &Results) -> String {
    let series: Vec<Series> = of(results, Quantity::Latency)
        .map(|m| {
            // The plot leaves out the tail above 99.9 %, which would make the rest narrow. The table contains the
            // maximum.
            let points = m.cdf().into_iter().filter(|p| p[1] <= 0.999).collect();
            Series { name: &m.who, class: class_of(&m.who), points, marks: false }
        })
        // Other projects' programs report no distribution.
        .filter(|series: &Series| !series.points.is_empty())
        .collect();
    let x = log_axis("round trip, us", series.iter().flat_map(|s| &s.points).map(|p| p[0]), "");
    let ticks = (0..=5).map(|i| (f64::from(i) / 5.0, format!("{} %", i * 20))).collect();
    let y = Axis { title: "round trips no longer than that", range: [0.0, 1.0], log: false, ticks };
    plot(&x, &y, &series)
}

/// Returns a line of the plot for each program whose bandwidth was measured: `value` over the size of a message. Leaves
/// out the measurements for which `value` returns `None`.
fn over_size<'a>(results: &'a Results, value: impl Fn(&Measurement) -> Option<f64>) -> Vec<Series<'a>> {
    let mut series: Vec<Series> = Vec::new();
    for m in of(results, Quantity::Bandwidth) {
        let Some(value) = value(m) else { continue };
        let point = [m.size as f64, value];
        match series.iter_mut().find(|s| s.name == m.who) {
            Some(s) => s.points.push(point),
            None => series.push(Series {
                name: &m.who,
                class: class_of(&m.who),
                points: vec![point],
                marks: m.who != who::FLOOR,
            }),
        }
    }
    series
}

fn size_plot(series: &[Series], title: &str) -> String {
    let sizes: Vec<u64> = (6..=20).step_by(2).map(|e| 1 << e).collect();
    let ticks = sizes.iter().map(|n| (*n as f64, size(*n))).collect();
    let x = Axis { title: "size of a message", range: [64.0, f64::from(1 << 20)], log: true, ticks };
    let y = log_axis(title, series.iter().flat_map(|s| &s.points).map(|p| p[1]), "");
    plot(&x, &y, series)
}

/// Returns the page.
pub fn page(results: &Results) -> String {
    let mut html = format!(
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content=\"width=device-width\">\
         <title>urnic beside its peers</title><style>{STYLE}</style><h1>urnic beside the raw link and the kernel</h1>\
         <p class=soft>{}. Medians of {} runs, in turns; MTU {}; CRC on; each end pinned to a core of its own.{}</p>",
        results.started,
        results.runs,
        results.mtu,
        if results.quick { " Quick: fewer sizes and runs than usual." } else { "" }
    );
    let mut put = |part: &str| html.push_str(part);
    let others = results.others_percent.iter().copied().fold(0.0, f64::max);
    if others >= 5.0 {
        let all: Vec<String> = results.others_percent.iter().map(|p| format!("{p:.0}")).collect();
        put(&format!(
            "<p class=note><b>The machine was busy.</b> Other programs used {} % of the cores just before the runs: \
             these figures are worse than an idle machine's, and ratios less sure.</p>",
            all.join(", ")
        ));
    }
    put("<h2>Goals</h2>");
    put(&table(
        &["goal", "measured", "verdict"],
        3,
        results.verdicts.iter().map(|v| {
            let class = match v.outcome {
                Outcome::Pass => "pass",
                Outcome::Fail => "fail",
                _ => "soft",
            };
            let verdict = format!("<span class={class}>{}</span>", v.outcome.word());
            vec![escape(&v.goal), escape(&v.measured), verdict]
        }),
    ));
    if !results.left_out.is_empty() {
        put("<h2>Left out</h2>");
        let rows = results.left_out.iter().map(|l| vec![escape(&l.what), escape(&l.why)]);
        put(&table(&["what", "why"], 2, rows));
    }
    put("<h2>Round trip of 8 bytes</h2>");
    put(
        "<p>The share of round trips that took no longer than so many microseconds, up to 99.9 %. Further left is \
         better. The raw link's frame is as long as that of an 8-byte Write. Stock programs are in the table only, because \
         they print no distribution: perftest and sockperf print percentiles, fi_pingpong prints a mean. sockperf's \
         messages have 14 bytes, its minimum.</p>",
    );
    put(&latency_plot(results));
    put(&table(
        &["us", "min", "p50", "p99", "p99.9", "max", "p50 of runs"],
        1,
        of(results, Quantity::Latency).filter_map(|m| {
            let (low, high) = m.range()?;
            let mut row = vec![escape(&m.who)];
            row.extend(match m.rtt_us {
                Some(l) => [l.min, l.p50, l.p99, l.p999, l.max].map(number),
                None => ["".into(), format!("mean {}", number(m.median?)), "".into(), "".into(), "".into()],
            });
            row.push(format!("{} to {}", number(low), number(high)));
            Some(row)
        }),
    ));
    put("<h2>Bandwidth over message size</h2>");
    put(
        "<p>Bits of payload; for the raw link, bits of full frames, whose payload the receiver does not read. iperf3's \
         message size is the length of a write, and TCP packs small writes together. With TSO/GSO, segments of 64 KiB \
         cross the cable uncut, which no wire would carry.</p>",
    );
    put(&size_plot(&over_size(results, |m| m.median), "Gbit/s"));
    put(&table(
        &["Gbit/s", "size", "median", "runs"],
        1,
        of(results, Quantity::Bandwidth).filter_map(row_of),
    ));
    put("<h2>Message rate</h2>");
    put("<p>Plot: messages per second in the runs above. Table: Writes of urnic perf --mode rate.</p>");
    let rate = over_size(results, |m| (m.who != who::FLOOR).then_some(m.median? * 1e3 / 8.0 / m.size as f64));
    put(&size_plot(&rate, "million messages per second"));
    put(&table(
        &["million messages per second", "size", "median", "runs"],
        1,
        of(results, Quantity::Rate).filter_map(row_of),
    ));
    if of(results, Quantity::Instructions).next().is_some() {
        put("<h2>Instructions per segment</h2>");
        put(
            "<p>Counted by callgrind, for full segments with timestamps and their ACKs: one ACK for 32 segments received, \
             and one for every two sent. Both stacks compute and verify checksums by portable code. smoltcp copies \
             payload into its socket buffer, and when it sends, from there into frames. urnic copies no payload, except \
             in the rows that say so.</p>",
        );
        put(&table(
            &["instructions", "data of a segment", "count", "runs"],
            1,
            of(results, Quantity::Instructions).filter_map(row_of),
        ));
    }
    put("<h2>Machine and versions</h2>");
    let facts = results.machine.iter().chain(&results.versions);
    put(&table(&["", ""], 2, facts.map(|(name, value)| vec![escape(name), escape(value)])));
    put(&format!(
        "<p class=soft>All samples are in results.json. The measurements took {:.0} s.</p></html>\n",
        results.seconds
    ));
    html
}

fn row_of(m: &Measurement) -> Option<Vec<String>> {
    let (low, high) = m.range()?;
    let runs = format!("{} to {}", number(low), number(high));
    Some(vec![escape(&m.who), size(m.size), number(m.median?), runs])
}

/// Returns the results for a terminal, without the plots.
pub fn terminal(results: &Results) -> String {
    let mut measured = Table::new();
    measured.load_style(presets::UTF8_FULL_CONDENSED);
    measured.set_header(["who", "size", "median", "unit", "runs"]);
    for m in &results.measurements {
        if let (Some(median), Some((low, high))) = (m.median, m.range()) {
            let runs = format!("{} to {}", number(low), number(high));
            measured.add_row([m.who.clone(), size(m.size), number(median), m.unit.to_owned(), runs]);
        }
    }
    let mut goals = Table::new();
    goals.load_style(presets::UTF8_FULL_CONDENSED);
    goals.set_header(["goal", "measured", "verdict"]);
    for v in &results.verdicts {
        goals.add_row([v.goal.clone(), v.measured.clone(), v.outcome.word().to_owned()]);
    }
    let mut text = format!("{measured}\n{goals}");
    for l in &results.left_out {
        let _ = write!(text, "\nleft out: {}: {}", l.what, l.why);
    }
    let others = results.others_percent.iter().copied().fold(0.0, f64::max);
    if others >= 5.0 {
        let _ = write!(text, "\nthe machine was busy: other programs used up to {others:.0} % of the cores");
    }
    text
}
