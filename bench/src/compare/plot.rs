//! Line plots as SVG. Their colours are variables of the page, so they follow its light or dark theme.

use std::fmt::Write;

/// A line.
pub struct Series<'a> {
    /// The name in the legend.
    pub name: &'a str,
    /// The CSS classes of the line.
    pub class: &'a str,
    /// The points, ordered by x. A single point is drawn as a horizontal line across the plot.
    pub points: Vec<[f64; 2]>,
    /// Whether points are marked.
    pub marks: bool,
}

/// An axis.
pub struct Axis<'a> {
    /// The quantity, with its unit.
    pub title: &'a str,
    /// The values at the two ends.
    pub range: [f64; 2],
    /// Whether the axis is logarithmic.
    pub log: bool,
    /// Positions of grid lines, with their labels.
    pub ticks: Vec<(f64, String)>,
}

const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 400.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 32.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = 48.0;

impl Axis<'_> {
    /// Returns the position of a value, from 0 to 1.
    fn at(&self, value: f64) -> f64 {
        let [low, high] = self.range;
        let part = match self.log {
            true => (value.max(f64::MIN_POSITIVE) / low).ln() / (high / low).ln(),
            false => (value - low) / (high - low),
        };
        part.clamp(0.0, 1.0)
    }
}

/// Makes a logarithmic axis for positive values. Its ends and ticks are 1, 2 and 5 times the powers of ten: from the
/// last one that is at most the smallest value to the first one that is at least the largest value. If there are more
/// than 14 of them, only the powers of ten have ticks. Each label ends with `unit`.
pub fn log_axis<'a>(title: &'a str, values: impl Iterator<Item = f64> + Clone, unit: &str) -> Axis<'a> {
    let positive = values.filter(|v| *v > 0.0);
    let low = positive.clone().reduce(f64::min).unwrap_or(1.0);
    let high = positive.reduce(f64::max).unwrap_or(10.0);
    let steps: Vec<f64> = (-6..9).flat_map(|e| [1.0, 2.0, 5.0].map(|m: f64| m * 10.0_f64.powi(e))).collect();
    let first = steps.iter().rposition(|s| *s <= low).unwrap_or(0);
    let last = steps.iter().position(|s| *s >= high).unwrap_or(steps.len() - 1).max(first + 1);
    let steps = &steps[first..=last.min(steps.len() - 1)];
    let many = steps.len() > 14;
    let shown = steps.iter().filter(|s| !many || (s.log10().round() - s.log10()).abs() < 1e-6);
    let ticks = shown.map(|s| (*s, format!("{s}{unit}"))).collect();
    Axis { title, range: [steps[0], steps[steps.len() - 1]], log: true, ticks }
}

/// Draws a plot with its legend.
pub fn plot(x: &Axis, y: &Axis, series: &[Series]) -> String {
    let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
    let px = |v: f64| LEFT + x.at(v) * (right - LEFT);
    let py = |v: f64| bottom - y.at(v) * (bottom - TOP);
    let mut svg = format!("<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\">");
    // Writing to a String cannot fail.
    let mut put = |part: std::fmt::Arguments| svg.write_fmt(part).unwrap_or_default();
    for (value, label) in &x.ticks {
        let at = px(*value);
        put(format_args!("<line class=grid x1={at:.1} x2={at:.1} y1={TOP} y2={bottom} />"));
        put(format_args!("<text x={at:.1} y={:.1} text-anchor=middle>{label}</text>", bottom + 18.0));
    }
    for (value, label) in &y.ticks {
        let at = py(*value);
        put(format_args!("<line class=grid x1={LEFT} x2={right} y1={at:.1} y2={at:.1} />"));
        put(format_args!("<text x={:.1} y={:.1} text-anchor=end>{label}</text>", LEFT - 8.0, at + 4.0));
    }
    let middle = (LEFT + right) / 2.0;
    put(format_args!("<text x={middle} y={} text-anchor=middle>{}</text>", HEIGHT - 8.0, x.title));
    let up = (TOP + bottom) / 2.0;
    put(format_args!(
        "<text transform=\"translate(14 {up}) rotate(-90)\" text-anchor=middle>{}</text>",
        y.title
    ));
    for s in series {
        let name = s.name;
        let level;
        let points = match s.points.as_slice() {
            [[_, value]] => {
                level = [[x.range[0], *value], [x.range[1], *value]];
                &level[..]
            }
            points => points,
        };
        let line: String =
            points.iter().map(|[a, b]| format!("{:.1},{:.1} ", px(*a), py(*b))).collect::<String>();
        let class = s.class;
        put(format_args!(
            "<polyline class=\"line {class}\" points=\"{line}\"><title>{name}</title></polyline>"
        ));
        for [a, b] in points.iter().filter(|_| s.marks) {
            put(format_args!(
                "<circle class=\"mark {class}\" cx={:.1} cy={:.1} r=4><title>{name}: {b:.3}</title></circle>",
                px(*a),
                py(*b)
            ));
        }
    }
    svg.push_str("</svg><p class=legend>");
    for s in series {
        let _ = write!(
            svg,
            "<span><svg class=key viewBox=\"0 0 28 8\"><line class=\"line {}\" x1=0 x2=28 y1=4 y2=4 /></svg>{}</span> ",
            s.class, s.name
        );
    }
    svg.push_str("</p>");
    svg
}
