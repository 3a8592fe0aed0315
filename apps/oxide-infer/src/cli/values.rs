//! Values that options take and that need more than a standard parser.

use std::fmt;
use std::num::NonZeroUsize;
use std::str::FromStr;
use std::time::Duration;

/// A size in bytes, written as `512MiB`, `2GiB`, `1.5GB` or a plain number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ByteSize(pub(crate) u64);

const UNITS: [(&str, u64); 11] = [
    ("kib", 1 << 10),
    ("mib", 1 << 20),
    ("gib", 1 << 30),
    ("tib", 1 << 40),
    ("kb", 1_000),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
    ("tb", 1_000_000_000_000),
    ("b", 1),
    ("g", 1 << 30),
    ("m", 1 << 20),
];

impl FromStr for ByteSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            || format!("`{text}` is not a size; write bytes, or a number and a unit such as 512MiB or 2GiB");
        let lower = text.trim().to_ascii_lowercase();
        let digits = lower.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(lower.len());
        let (number, unit) = lower.split_at(digits);
        let factor = match unit.trim() {
            "" => 1,
            unit => UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(wrong)?.1,
        };
        if let Ok(whole) = number.parse::<u64>() {
            return whole.checked_mul(factor).map(ByteSize).ok_or_else(wrong);
        }
        let bytes = number.parse::<f64>().map_err(|_| wrong())? * factor as f64;
        if bytes < u64::MAX as f64 { Ok(ByteSize(bytes as u64)) } else { Err(wrong()) }
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.0 as f64;
        for (unit, factor) in [("TiB", 1u64 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)] {
            if self.0 >= factor {
                let value = bytes / factor as f64;
                let decimals = if self.0.is_multiple_of(factor) { 0 } else { 1 };
                return write!(f, "{value:.decimals$} {unit}");
            }
        }
        write!(f, "{} bytes", self.0)
    }
}

/// Parses a length of time: `30`, `30s`, `500ms`, `2m`, `1h`. A plain number is seconds.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("`{text}` is not a length of time; write seconds, or a number and ms, s, m or h");
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let seconds_per_unit = match unit.trim() {
        "ms" => 1e-3,
        "" | "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return Err(wrong()),
    };
    let seconds = number.parse::<f64>().map_err(|_| wrong())? * seconds_per_unit;
    Duration::try_from_secs_f64(seconds).map_err(|_| wrong())
}

/// How many requests to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestCount {
    /// This many.
    Exactly(usize),
    /// This many times as many as are in flight at once.
    Waves(usize),
}

impl RequestCount {
    /// The number where `concurrency` requests are in flight; `None` where nothing bounds them and waves are counted.
    pub(crate) fn at(self, concurrency: Option<NonZeroUsize>) -> Option<usize> {
        match self {
            RequestCount::Exactly(count) => Some(count),
            RequestCount::Waves(waves) => waves.checked_mul(concurrency?.get()),
        }
    }
}

impl FromStr for RequestCount {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = |_| {
            format!(
                "`{text}` is not a number of requests; write one such as 100, or 4x for four times the concurrency"
            )
        };
        match text.strip_suffix('x') {
            Some(waves) => waves.parse().map(RequestCount::Waves).map_err(wrong),
            None => text.parse().map(RequestCount::Exactly).map_err(wrong),
        }
    }
}

impl fmt::Display for RequestCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RequestCount::Exactly(count) => write!(f, "{count}"),
            RequestCount::Waves(waves) => write!(f, "{waves}x"),
        }
    }
}

/// Parses a number of requests that is above 0.
pub(crate) fn some_requests(text: &str) -> Result<RequestCount, String> {
    match text.parse()? {
        RequestCount::Exactly(0) | RequestCount::Waves(0) => {
            Err("there must be a request to measure".to_owned())
        }
        count => Ok(count),
    }
}

/// Where the model runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeviceArg {
    /// The CPU.
    Cpu,
    /// The CUDA device with this ordinal.
    Cuda(u32),
}

impl FromStr for DeviceArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is not a device; write cpu, cuda or cuda:N");
        match text.split_once(':') {
            None if text == "cpu" => Ok(DeviceArg::Cpu),
            None if text == "cuda" => Ok(DeviceArg::Cuda(0)),
            Some(("cuda", ordinal)) => ordinal.parse().map(DeviceArg::Cuda).map_err(|_| wrong()),
            _ => Err(wrong()),
        }
    }
}

impl fmt::Display for DeviceArg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceArg::Cpu => f.write_str("cpu"),
            DeviceArg::Cuda(ordinal) => write!(f, "cuda:{ordinal}"),
        }
    }
}

/// Weights to use instead of the model's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WeightsArg {
    /// Made from this seed.
    Random(u64),
}

impl FromStr for WeightsArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let seed = text.strip_prefix("random:").and_then(|seed| seed.parse().ok());
        seed.map(WeightsArg::Random).ok_or_else(|| {
            format!("`{text}` names no weights; write random:SEED with a whole number from 0 to {}", u64::MAX)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_alone_or_by_the_concurrency() {
        let at = |text: &str, concurrency| {
            text.parse::<RequestCount>().map(|count| count.at(NonZeroUsize::new(concurrency)))
        };
        assert_eq!(at("100", 16), Ok(Some(100)));
        assert_eq!(at("4x", 16), Ok(Some(64)));
        assert_eq!(at("4x", 0), Ok(None));
        assert_eq!(at("18446744073709551615x", 2), Ok(None));
        for wrong in ["", "x", "-1", "1.5x", "4X"] {
            let error = at(wrong, 1).unwrap_err();
            assert!(error.contains(&format!("`{wrong}` is not a number of requests")), "{error}");
        }
        assert!(some_requests("0x").is_err() && some_requests("0").is_err() && some_requests("1x").is_ok());
    }

    #[test]
    fn sizes_take_binary_and_decimal_units() {
        let size = |text: &str| text.parse::<ByteSize>().map(|s| s.0);
        assert_eq!(size("2GiB"), Ok(2_147_483_648));
        assert_eq!(size("2gb"), Ok(2_000_000_000));
        assert_eq!(size("512 MiB"), Ok(536_870_912));
        assert_eq!(size("1.5KiB"), Ok(1536));
        assert_eq!(size("4096"), Ok(4096));
        assert_eq!(size("8G"), Ok(8_589_934_592));
    }

    #[test]
    fn wrong_sizes_name_the_value() {
        for text in ["", "GiB", "-1", "2 parsecs", "99999999999999999999", "1e5", "20000000000TiB"] {
            let error = text.parse::<ByteSize>().unwrap_err();
            assert!(error.contains(&format!("`{text}`")), "{error}");
        }
    }

    #[test]
    fn sizes_print_in_the_largest_unit_that_fits() {
        assert_eq!(ByteSize(2 << 30).to_string(), "2 GiB");
        assert_eq!(ByteSize(98_362_432).to_string(), "93.8 MiB");
        assert_eq!(ByteSize(12).to_string(), "12 bytes");
    }

    #[test]
    fn durations_take_units_and_default_to_seconds() {
        assert_eq!(duration("30"), Ok(Duration::from_secs(30)));
        assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(duration("1.5m"), Ok(Duration::from_secs(90)));
        assert_eq!(duration("2h"), Ok(Duration::from_secs(7200)));
        for text in ["", "s", "-3", "5 days"] {
            assert!(duration(text).unwrap_err().contains(&format!("`{text}`")));
        }
    }

    #[test]
    fn devices_are_cpu_or_cuda_with_an_ordinal() {
        assert_eq!("cpu".parse(), Ok(DeviceArg::Cpu));
        assert_eq!("cuda".parse(), Ok(DeviceArg::Cuda(0)));
        assert_eq!("cuda:3".parse(), Ok(DeviceArg::Cuda(3)));
        for text in ["gpu", "cuda:", "cuda:x", "cpu:0", "CUDA"] {
            assert!(text.parse::<DeviceArg>().unwrap_err().contains(text));
        }
    }

    #[test]
    fn weights_are_random_with_a_seed() {
        assert_eq!("random:7".parse(), Ok(WeightsArg::Random(7)));
        assert_eq!(format!("random:{}", u64::MAX).parse(), Ok(WeightsArg::Random(u64::MAX)));
        for wrong in ["random", "random:", "random:-1", "random:18446744073709551616", "zeros:1", "7"] {
            let error = wrong.parse::<WeightsArg>().unwrap_err();
            assert!(error.contains(&format!("`{wrong}`")) && error.contains("random:SEED"), "{error}");
        }
    }
}
