//! One file a command.

pub mod bench;
mod bench_worker;
pub mod check;
pub mod compare;
pub mod convert;
pub mod generate;
pub mod models;
pub mod prepare;
pub mod schemes;
pub mod show;
pub mod sparse;
pub mod train;
pub mod translate;

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use addnorm_nn::{ModelConfig, UnknownPreset, preset};
use addnorm_train::RunConfig;

use crate::failure::Failure;

/// Reads a configuration file.
pub fn read_config(path: &Path) -> Result<RunConfig, Failure> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| Failure::input(format!("the configuration {} cannot be read: {error}", path.display())))?;
    RunConfig::from_toml(&text).map_err(|mut error| {
        error.message = format!("{}: {}", path.display(), error.message);
        error.into()
    })
}

/// Puts a published model's sizes over the configuration, if one is asked for. Its vocabulary is the data's.
pub fn start_from_model(name: Option<&str>, config: &mut RunConfig) -> Result<(), Failure> {
    let Some(name) = name else { return Ok(()) };
    let preset = preset(name).map_err(unknown_model)?;
    config.model = ModelConfig { vocabulary: 0, classes: 0, image: 0, channels: 1, ..preset.model };
    if config.scheme.is_empty() {
        config.scheme = preset.scheme;
    }
    Ok(())
}

/// A model that is not there, in words.
pub fn unknown_model(error: UnknownPreset) -> Failure {
    let hint = error.hint.clone();
    Failure::input(error).hint(hint)
}

/// The folder to write to: the one that was asked for, or a new one under `runs/`.
pub fn output_folder(asked: Option<&Path>, kind: &str) -> Result<PathBuf, Failure> {
    let cannot = |path: &Path, error: std::io::Error| {
        Failure::run(format!("the folder {} cannot be made: {error}", path.display()))
    };
    if let Some(path) = asked {
        let occupied = std::fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_some());
        if occupied {
            let message = format!("the folder {} is not empty", path.display());
            return Err(Failure::input(message).hint("give another '--out', or remove the folder"));
        }
        std::fs::create_dir_all(path).map_err(|error| cannot(path, error))?;
        return Ok(path.to_path_buf());
    }
    let runs = Path::new("runs");
    std::fs::create_dir_all(runs).map_err(|error| cannot(runs, error))?;
    let stamp = timestamp();
    for count in 1.. {
        let suffix = if count == 1 { String::new() } else { format!("-{count}") };
        let path = runs.join(format!("{kind}-{stamp}{suffix}"));
        // Making it claims it: two commands in one second get two folders.
        match std::fs::create_dir(&path) {
            Ok(()) => return Ok(path),
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(cannot(&path, error)),
        }
    }
    unreachable!("a free number is found")
}

/// Now, in UTC, as `20260131-235959`.
fn timestamp() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_secs());
    let (days, rest) = ((seconds / 86_400) as i64, seconds % 86_400);
    // Civil date from days since 1970 (Howard Hinnant's algorithm).
    let z = days + 719_468;
    let era = z.div_euclid(146_097);
    let day_of_era = z.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_part = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_part + 2) / 5 + 1;
    let month = if month_part < 10 { month_part + 3 } else { month_part - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    format!("{year:04}{month:02}{day:02}-{:02}{:02}{:02}", rest / 3600, rest / 60 % 60, rest % 60)
}
