//! Published models as configurations.

use addnorm_scheme::nearest;
use serde::{Deserialize, Serialize};

use crate::config::ModelConfig;

/// Name and text of every preset, in order of name.
static PRESETS: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/presets.rs"));

/// A published model: its scheme, its sizes, and how many parameters it is said to have.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Preset {
    /// What it is called.
    pub title: String,
    /// Where it was published.
    pub paper: String,
    /// Where its configuration is public.
    pub source: String,
    /// Published trainable numbers.
    pub parameters: u64,
    /// Whether a public configuration gives exactly that many; else it is a rounded figure.
    pub exact: bool,
    /// What the count includes, and what of the model is not expressed.
    #[serde(default)]
    pub note: String,
    /// The scheme's name.
    pub scheme: String,
    /// Everything else.
    pub model: ModelConfig,
}

/// A preset that is not there.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no model '{name}'")]
pub struct UnknownPreset {
    /// What was asked for.
    pub name: String,
    /// What to do instead.
    pub hint: String,
}

/// The names of all presets, in order.
pub fn preset_names() -> impl Iterator<Item = &'static str> + Clone {
    PRESETS.iter().map(|(name, _)| *name)
}

/// The preset of that name.
///
/// # Errors
/// If there is none.
pub fn preset(name: &str) -> Result<Preset, UnknownPreset> {
    let Some((_, text)) = PRESETS.iter().find(|(known, _)| *known == name) else {
        let hint = match nearest(name, preset_names()) {
            Some(near) => format!("did you mean '{near}'? 'addnorm models' lists them all"),
            None => "'addnorm models' lists them all".to_string(),
        };
        return Err(UnknownPreset { name: name.to_string(), hint });
    };
    Ok(toml::from_str(text).expect("a preset is valid TOML; a test reads them all"))
}
