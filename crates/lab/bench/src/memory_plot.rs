// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Draws the points of `--workload memory`: latency over the working set, bandwidth over the mix, and latency over the
//! bandwidth of the load, with a line for each place.

use std::fs;
use std::path::{Path, PathBuf};

use plotters::prelude::*;

use crate::failure::BenchFailure;
use crate::memory::{Measure, MemoryPoint, Place, distinct, label, summary};
use crate::plot::{COLOURS, SIZE};
use crate::ratios::Spread;

/// One chart: its file, its texts, and a line for each place.
struct Chart {
    name: &'static str,
    title: &'static str,
    x: &'static str,
    y: &'static str,
    /// The names of whole numbers on the horizontal axis; empty for an axis of numbers.
    ticks: Vec<String>,
    lines: Vec<(Place, Vec<(f64, f64)>)>,
}

/// Writes the plots and returns their paths. None without points.
pub fn draw(points: &[MemoryPoint], directory: &Path) -> Result<Vec<PathBuf>, BenchFailure> {
    let mut paths = Vec::new();
    for chart in charts(points) {
        let mut svg = String::new();
        lines(&mut svg, &chart)
            .map_err(|error| BenchFailure::trouble(format!("cannot draw {}: {error}", chart.name), ""))?;
        let path = directory.join(format!("{}.svg", chart.name));
        fs::write(&path, svg).map_err(|error| BenchFailure::io(format!("cannot write {}", path.display()), &error))?;
        paths.push(path);
    }
    Ok(paths)
}

fn charts(points: &[MemoryPoint]) -> Vec<Chart> {
    let places = distinct(points.iter().map(|point| point.place.clone()));
    let measures = distinct(points.iter().map(|point| point.measure));
    let of = |belongs: fn(&Measure) -> bool| measures.iter().copied().filter(belongs).collect::<Vec<_>>();
    let by_row = |rows: &[Measure]| {
        let line = |place: &Place| {
            let value = |(at, measure): (usize, &Measure)| Some((at as f64, summary(points, place, *measure)?.median));
            (place.clone(), rows.iter().enumerate().filter_map(value).collect())
        };
        places.iter().map(line).collect::<Vec<(Place, Vec<(f64, f64)>)>>()
    };
    let names = |rows: &[Measure]| rows.iter().map(|measure| label(*measure)).collect::<Vec<_>>();
    let latency = of(|it| matches!(it, Measure::Latency { .. }));
    let bandwidth = of(|it| matches!(it, Measure::Bandwidth { .. }));
    let loaded = of(|it| matches!(it, Measure::Loaded { .. }));
    let under_load = |place: &Place| {
        let value = |measure: &Measure| {
            let of_it = points.iter().filter(|point| point.place == *place && point.measure == *measure);
            let loads: Vec<f64> = of_it.filter_map(|point| point.load_gb_per_second).collect();
            Some((Spread::of(&loads)?.median, summary(points, place, *measure)?.median))
        };
        (place.clone(), loaded.iter().filter_map(value).collect::<Vec<_>>())
    };
    let all = [
        Chart {
            name: "memory-latency",
            title: "latency of a dependent load",
            x: "working set",
            y: "ns",
            ticks: names(&latency),
            lines: by_row(&latency),
        },
        Chart {
            name: "memory-bandwidth",
            title: "bandwidth",
            x: "reads : writes",
            y: "GB/s",
            ticks: names(&bandwidth),
            lines: by_row(&bandwidth),
        },
        Chart {
            name: "memory-loaded",
            title: "latency under load",
            x: "GB/s of the load",
            y: "ns",
            ticks: Vec::new(),
            lines: places.iter().map(under_load).collect(),
        },
    ];
    all.into_iter().filter(|chart| chart.lines.iter().any(|(_, line)| !line.is_empty())).collect()
}

fn lines(svg: &mut String, chart: &Chart) -> Result<(), Box<dyn std::error::Error>> {
    let all = || chart.lines.iter().flat_map(|(_, line)| line.iter());
    let right = all().map(|point| point.0).fold(0.0, f64::max).max(1.0) * 1.02;
    let top = all().map(|point| point.1).fold(0.0, f64::max).max(1e-9) * 1.1;
    let root = SVGBackend::with_string(svg, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let mut drawn = ChartBuilder::on(&root)
        .caption(format!("{}, {}", chart.title, chart.y), ("sans-serif", 22))
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(64)
        .build_cartesian_2d(0f64..right, 0f64..top)?;
    let tick = |at: &f64| match chart.ticks.get(at.round().max(0.0) as usize) {
        _ if chart.ticks.is_empty() => crate::table::short(*at),
        Some(name) if (at - at.round()).abs() < 0.01 => name.clone(),
        _ => String::new(),
    };
    drawn
        .configure_mesh()
        .x_desc(chart.x)
        .y_desc(chart.y)
        .x_labels(chart.ticks.len().max(8))
        .x_label_formatter(&tick)
        .draw()?;
    for (index, (place, line)) in chart.lines.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        drawn
            .draw_series([PathElement::new(line.clone(), colour.stroke_width(2))])?
            .label(place.to_string())
            .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 12, y + 5)], colour.filled()));
        drawn.draw_series(line.iter().map(|point| Circle::new(*point, 3, colour.filled())))?;
    }
    drawn
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK)
        .draw()?;
    root.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::tests::point;

    #[test]
    fn each_measure_has_a_chart_with_a_line_for_each_place() {
        let near = Place::Node { memory: 0, cpus: 0, cpu_list: "0".into() };
        let far = Place::Node { memory: 1, cpus: 0, cpu_list: "0".into() };
        let mut points = Vec::new();
        for place in [&near, &far] {
            for measure in [
                Measure::Latency { bytes: 16 << 10 },
                Measure::Latency { bytes: 1 << 20 },
                Measure::Bandwidth { reads: 1, writes: 0 },
                Measure::Loaded { delay_ns: 0 },
            ] {
                points.push(point(place, measure, 0, 100.0));
            }
        }
        let all = charts(&points);
        assert_eq!(
            all.iter().map(|chart| chart.name).collect::<Vec<_>>(),
            ["memory-latency", "memory-bandwidth", "memory-loaded"]
        );
        for chart in &all {
            let mut svg = String::new();
            lines(&mut svg, chart).unwrap();
            for word in ["<svg", chart.title, "node0 local", "node1 from node0"] {
                assert!(svg.contains(word), "{}: {word} is missing", chart.name);
            }
        }
        assert!(charts(&[]).is_empty());
    }
}
