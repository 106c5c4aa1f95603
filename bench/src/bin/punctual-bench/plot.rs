//! `plot FILE`: the JSON of a run of the benchmark as a picture (SVG).

use std::fmt::Write as _;

use serde_json::Value;

const WIDTH: f64 = 760.0;
const LABEL: f64 = 190.0;
const BAR: f64 = 22.0;
const TEXT: &str = "font-family=\"sans-serif\" font-size=\"13\" fill=\"#333\"";

struct Bar {
    label: String,
    value: f64,
    text: String,
    colour: &'static str,
}

struct Chart {
    title: String,
    bars: Vec<Bar>,
}

/// Draws what is known of the scenarios in these lines of JSON.
pub(crate) fn draw(lines: &str) -> Result<String, String> {
    let mut charts = Vec::new();
    let mut late = Chart {
        title: "Lateness of the handler's first instruction, ms (p50, p99)".into(),
        bars: Vec::new(),
    };
    for line in lines.lines().filter(|line| !line.trim().is_empty()) {
        let object: Value = serde_json::from_str(line).map_err(|error| error.to_string())?;
        match object["scenario"].as_str() {
            Some("decisions") => {
                charts.push(throughput(&object, "Durable decisions a second"));
            }
            Some("runs") => {
                charts.push(throughput(&object, "Complete runs a second, no-op handler"));
            }
            Some("lateness") => {
                let rows = object["rows"].as_array();
                rows.into_iter()
                    .flatten()
                    .for_each(|row| lateness(&mut late, row));
            }
            _ => {}
        }
    }
    if !late.bars.is_empty() {
        charts.push(late);
    }
    if charts.is_empty() {
        return Err("nothing in this file can be drawn".into());
    }
    Ok(svg(&charts))
}

fn throughput(object: &Value, title: &str) -> Chart {
    let names = [
        ("product", "product_per_s", "#2a6f97"),
        ("baseline", "baseline_per_s", "#c1666b"),
        ("ceiling of the store", "ceiling_per_s", "#bbbbbb"),
    ];
    let bars = names.into_iter().map(|(label, key, colour)| {
        let value = object[key].as_f64().unwrap_or(0.0);
        Bar {
            label: label.into(),
            value,
            text: format!("{value:.0}"),
            colour,
        }
    });
    Chart {
        title: title.into(),
        bars: bars.collect(),
    }
}

fn lateness(chart: &mut Chart, object: &Value) {
    let number = |key: &str| object[key].as_f64().unwrap_or(0.0);
    let label = format!(
        "{}/s, {}, {} etcd",
        object["rate_per_s"],
        object["arrivals"].as_str().unwrap_or("?"),
        object["etcd_members"]
    );
    for (name, key, colour) in [("p50", "p50_ms", "#2a6f97"), ("p99", "p99_ms", "#89c2d9")] {
        chart.bars.push(Bar {
            label: format!("{label} {name}"),
            value: number(key),
            text: format!("{:.0}", number(key)),
            colour,
        });
    }
}

fn svg(charts: &[Chart]) -> String {
    let mut y = 10.0;
    let mut body = String::new();
    for chart in charts {
        y += 24.0;
        // (Writing to text cannot fail.)
        let title = &chart.title;
        let _ = writeln!(
            body,
            "<text x=\"10\" y=\"{y}\" {TEXT} font-weight=\"bold\">{title}</text>"
        );
        let most = chart.bars.iter().map(|bar| bar.value).fold(1.0, f64::max);
        y += 8.0;
        for bar in &chart.bars {
            let width = (bar.value / most * (WIDTH - LABEL - 90.0)).max(1.0);
            let (base, right) = (y + 15.0, LABEL + width + 6.0);
            let Bar {
                label,
                text,
                colour,
                ..
            } = bar;
            let _ = writeln!(body, "<text x=\"10\" y=\"{base}\" {TEXT}>{label}</text>");
            let _ = writeln!(
                body,
                "<rect x=\"{LABEL}\" y=\"{y}\" width=\"{width:.1}\" height=\"{}\" fill=\"{colour}\"/>",
                BAR - 4.0
            );
            let _ = writeln!(
                body,
                "<text x=\"{right:.1}\" y=\"{base}\" {TEXT}>{text}</text>"
            );
            y += BAR;
        }
        y += 12.0;
    }
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{y}\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n{body}</svg>\n"
    )
}
