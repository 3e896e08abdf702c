// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What was measured, the project's bars, and both as a table or as JSON.

use std::time::Duration;

use serde_json::json;

/// One measured figure.
pub(crate) struct Figure {
    volumes: usize,
    what: String,
    took: Duration,
}

impl Figure {
    pub(crate) const BIND: &str = "bind to usable";
    pub(crate) const CPU: &str = "processor time of the manager for one bind";
    pub(crate) const REBOOT: &str = "a rack's reboot is reconciled";
    pub(crate) const STATUS: &str = "status";
}

/// The bars for single figures, in milliseconds.
const BARS: [(&str, u64); 3] = [("status, median", 50), ("bind to usable, median", 200), (Figure::REBOOT, 30_000)];

/// All figures, in the order in which they were measured.
#[derive(Default)]
pub(crate) struct Figures(Vec<Figure>);

fn ms(took: Duration) -> f64 {
    (took.as_secs_f64() * 10_000.0).round() / 10.0
}

impl Figures {
    pub(crate) fn add(&mut self, volumes: usize, what: &str, took: Duration) {
        self.0.push(Figure { volumes, what: what.to_owned(), took });
    }

    /// Adds the median and the largest of the durations, and clears the list.
    pub(crate) fn add_median(&mut self, volumes: usize, what: &str, took: &mut Vec<Duration>) {
        took.sort();
        if let (Some(median), Some(max)) = (took.get(took.len() / 2), took.last()) {
            self.add(volumes, &format!("{what}, median"), *median);
            self.add(volumes, &format!("{what}, largest"), *max);
        }
        took.clear();
    }

    fn bar(figure: &Figure) -> Option<(u64, bool)> {
        let bar = BARS.iter().find(|(what, _)| *what == figure.what).map(|(_, bar)| *bar)?;
        Some((bar, figure.took <= Duration::from_millis(bar)))
    }

    /// Returns a figure in the largest pool divided by that in the smallest; and the same ratio of the logarithms of
    /// their numbers of volumes, which is its bar.
    fn growth(&self, what: &str) -> Option<(f64, f64)> {
        let of_it: Vec<&Figure> = self.0.iter().filter(|figure| figure.what == what).collect();
        let (first, last) = (of_it.first()?, of_it.last()?);
        let logarithm = |volumes: usize| (volumes as f64).ln();
        (last.volumes > first.volumes && first.volumes > 1).then(|| {
            let ratio = last.took.as_secs_f64() / first.took.as_secs_f64().max(1e-9);
            (ratio, logarithm(last.volumes) / logarithm(first.volumes))
        })
    }

    /// Returns the figures whose growth is compared with the logarithm.
    fn growths(&self) -> Vec<(String, f64, f64)> {
        let whats = [format!("{}, median", Figure::BIND), Figure::CPU.to_owned()];
        whats.into_iter().filter_map(|what| self.growth(&what).map(|(ratio, bar)| (what, ratio, bar))).collect()
    }

    fn all_met(&self) -> bool {
        let single = self.0.iter().filter_map(Figures::bar).all(|(_, is_met)| is_met);
        single && self.growths().iter().all(|(_, ratio, bar)| ratio <= bar)
    }

    /// Prints a table. Returns whether all bars are met.
    pub(crate) fn print_table(&self, donors: usize, hosts: usize, store: &str) -> bool {
        let verdict = |is_met: bool| if is_met { "met" } else { "missed" };
        println!("{donors} donors, {hosts} hosts, store: {store}\n");
        println!("{:>8}  {:<45} {:>10}  {:>9}", "volumes", "what", "ms", "bar");
        for figure in &self.0 {
            let bar = Figures::bar(figure);
            let bar = bar.map_or(String::new(), |(bar, is_met)| format!("{bar:>9}  {}", verdict(is_met)));
            println!("{:>8}  {:<45} {:>10.1}  {bar}", figure.volumes, figure.what, ms(figure.took));
        }
        for (what, ratio, bar) in self.growths() {
            println!("\ngrowth of {what}: {ratio:.2}; of the logarithm: {bar:.2}: {}", verdict(ratio <= bar));
        }
        self.all_met()
    }

    /// Prints one object per line for each figure. Returns whether all bars are met.
    pub(crate) fn print_json(&self, donors: usize, hosts: usize, store: &str) -> bool {
        for figure in &self.0 {
            let (bar, is_met) = Figures::bar(figure).unzip();
            let (volumes, what, ms) = (figure.volumes, &figure.what, ms(figure.took));
            println!(
                "{}",
                json!({ "what": what, "ms": ms, "bar_ms": bar, "is_met": is_met, "volumes": volumes,
                        "donors": donors, "hosts": hosts, "store": store })
            );
        }
        for (what, ratio, bar) in self.growths() {
            let what = format!("growth of {what}");
            println!("{}", json!({ "what": what, "ratio": ratio, "bar": bar, "is_met": ratio <= bar, "store": store }));
        }
        self.all_met()
    }
}
