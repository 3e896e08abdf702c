// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Draws one SVG per workload: a bar per contender and ratio, on a logarithmic scale, with the spread of the rounds.

use std::fs;
use std::path::{Path, PathBuf};

use plotters::prelude::*;

use crate::failure::BenchFailure;
use crate::record::{Record, Summary};

pub(crate) const SIZE: (u32, u32) = (960, 540);

/// Colours that can be distinguished with any colour vision (Okabe and Ito 2008).
pub(crate) const COLOURS: [RGBColor; 8] = [
    RGBColor(0, 114, 178),
    RGBColor(230, 159, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(213, 94, 0),
    RGBColor(240, 228, 66),
    RGBColor(90, 90, 90),
];

/// Writes the plots and returns their paths.
pub fn draw(record: &Record, directory: &Path) -> Result<Vec<PathBuf>, BenchFailure> {
    fs::create_dir_all(directory)
        .map_err(|error| BenchFailure::io(format!("cannot make {}", directory.display()), &error))?;
    let mut workloads: Vec<&str> = Vec::new();
    for summary in &record.summaries {
        if !workloads.contains(&summary.workload.as_str()) {
            workloads.push(&summary.workload);
        }
    }
    let mut paths = Vec::new();
    for workload in workloads {
        let rows: Vec<&Summary> = record.summaries.iter().filter(|summary| summary.workload == workload).collect();
        let mut svg = String::new();
        chart(&mut svg, workload, &rows)
            .map_err(|error| BenchFailure::trouble(format!("cannot draw {workload}: {error}"), ""))?;
        let path = directory.join(format!("{workload}.svg"));
        fs::write(&path, svg).map_err(|error| BenchFailure::io(format!("cannot write {}", path.display()), &error))?;
        paths.push(path);
    }
    paths.extend(crate::memory_plot::draw(&record.memory, directory)?);
    Ok(paths)
}

/// The ends of the axis: whole decades around the figures.
fn decades(rows: &[&Summary]) -> (f64, f64) {
    let positive = |value: f64| value.is_finite() && value > 0.0;
    let min = rows.iter().map(|row| row.spread.min).filter(|value| positive(*value)).fold(f64::INFINITY, f64::min);
    let greatest = rows.iter().map(|row| row.spread.max).filter(|value| positive(*value)).fold(0.0, f64::max);
    if greatest == 0.0 {
        return (0.1, 10.0);
    }
    let (low, high) = (10f64.powf((min * 0.8).log10().floor()), 10f64.powf((greatest * 1.1).log10().ceil()));
    (low, high)
}

fn chart(svg: &mut String, workload: &str, rows: &[&Summary]) -> Result<(), Box<dyn std::error::Error>> {
    let Some(first) = rows.first() else { return Ok(()) };
    let mut contenders: Vec<&str> = Vec::new();
    let mut locals: Vec<u32> = Vec::new();
    for row in rows {
        if !contenders.contains(&row.contender.as_str()) {
            contenders.push(&row.contender);
        }
        if !locals.contains(&row.local_percent) {
            locals.push(row.local_percent);
        }
    }
    let better = match first.better {
        crate::ratios::Better::Higher => "higher is better",
        crate::ratios::Better::Lower => "lower is better",
    };
    let (low, high) = decades(rows);
    let root = SVGBackend::with_string(svg, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&root)
        .caption(format!("{workload}: {} in {}, {better}", first.figure, first.unit), ("sans-serif", 22))
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(64)
        .build_cartesian_2d(0f64..locals.len() as f64, (low..high).log_scale())?;
    let label = |at: &f64| {
        let place = at.floor();
        let centred = (at - place - 0.5).abs() < 0.01;
        locals.get(place as usize).filter(|_| centred).map_or_else(String::new, |local| format!("{local} % local"))
    };
    chart
        .configure_mesh()
        .disable_x_mesh()
        .x_labels(locals.len() * 2 + 1)
        .x_label_formatter(&label)
        .y_desc(first.unit.as_str())
        .draw()?;
    let width = 0.84 / contenders.len() as f64;
    for (index, contender) in contenders.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        let bars = rows.iter().filter(|row| row.contender == *contender).filter_map(|row| {
            let group = locals.iter().position(|local| *local == row.local_percent)? as f64;
            Some((group + 0.08 + width * index as f64, row.spread))
        });
        let bars: Vec<_> = bars.collect();
        let boxes = bars.iter().map(|(left, spread)| {
            Rectangle::new([(*left, low), (left + width * 0.9, spread.median.max(low))], colour.filled())
        });
        chart
            .draw_series(boxes)?
            .label(*contender)
            .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 12, y + 5)], colour.filled()));
        let middle = |left: f64| left + width * 0.45;
        chart.draw_series(bars.iter().filter(|(_, s)| s.count > 1).map(|(left, s)| {
            PathElement::new([(middle(*left), s.min.max(low)), (middle(*left), s.max.max(low))], BLACK.stroke_width(2))
        }))?;
        chart.draw_series(bars.iter().map(|(left, s)| {
            Text::new(crate::table::short(s.median), (*left, s.median.max(low) * 1.08), ("sans-serif", 12))
        }))?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK)
        .draw()?;
    root.present()?;
    drop(chart);
    drop(root);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ratios::Better;
    use crate::record::{summarise, tests::run};

    #[test]
    fn a_chart_names_its_contenders_and_ratios() {
        let runs = [
            run("stream", 30, "aquifer-flash", 0, 2.0, Better::Higher),
            run("stream", 30, "swap-disk", 0, 0.06, Better::Higher),
            run("stream", 50, "swap-disk", 0, 0.09, Better::Higher),
        ];
        let summaries = summarise(&runs);
        let mut svg = String::new();
        chart(&mut svg, "stream", &summaries.iter().collect::<Vec<_>>()).unwrap();
        for word in ["<svg", "stream", "aquifer-flash", "swap-disk", "30 % local", "50 % local", "higher is better"] {
            assert!(svg.contains(word), "{word} is missing");
        }
    }

    #[test]
    fn the_axis_spans_whole_decades() {
        let runs = [run("s", 30, "a", 0, 2.0, Better::Higher), run("s", 30, "b", 0, 0.06, Better::Higher)];
        let summaries = summarise(&runs);
        let (low, high) = decades(&summaries.iter().collect::<Vec<_>>());
        assert!((low - 0.01).abs() < 1e-9 && (high - 10.0).abs() < 1e-9, "{low} {high}");
        assert_eq!(decades(&[]), (0.1, 10.0));
    }
}
