//! Medians, and the lines that are printed.

use std::time::Duration;

pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

pub fn median_micros(times: &[Duration]) -> f64 {
    median(times.iter().map(|time| time.as_secs_f64() * 1e6).collect())
}

pub fn row(what: &str, figure: &str, aim: &str) {
    println!("{what:<52} {figure:<46} {aim}");
}
