//! Numbers that survive JSON.

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A number which is written as itself when finite and else as the text `NaN`, `inf` or `-inf`, since JSON
/// has no word for these and a `null` forgets which one it was. A `null` is read as NaN.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd, Default)]
pub struct Number(pub f64);

impl From<f64> for Number {
    fn from(value: f64) -> Self {
        Number(value)
    }
}

impl Serialize for Number {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            value if value.is_finite() => serializer.serialize_f64(value),
            value if value.is_nan() => serializer.serialize_str("NaN"),
            value if value > 0.0 => serializer.serialize_str("inf"),
            _ => serializer.serialize_str("-inf"),
        }
    }
}

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl Visitor<'_> for Reader {
            type Value = Number;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a number, \"NaN\", \"inf\" or \"-inf\"")
            }

            fn visit_f64<E: de::Error>(self, value: f64) -> Result<Number, E> {
                Ok(Number(value))
            }

            fn visit_u64<E: de::Error>(self, value: u64) -> Result<Number, E> {
                Ok(Number(value as f64))
            }

            fn visit_i64<E: de::Error>(self, value: i64) -> Result<Number, E> {
                Ok(Number(value as f64))
            }

            fn visit_unit<E: de::Error>(self) -> Result<Number, E> {
                Ok(Number(f64::NAN))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Number, E> {
                match text {
                    "NaN" => Ok(Number(f64::NAN)),
                    "inf" => Ok(Number(f64::INFINITY)),
                    "-inf" => Ok(Number(f64::NEG_INFINITY)),
                    other => Err(E::custom(format!("'{other}' is no number"))),
                }
            }
        }
        deserializer.deserialize_any(Reader)
    }
}

#[cfg(test)]
mod tests {
    use super::Number;

    #[test]
    fn r01_not_a_number_and_the_infinities_come_back_as_they_were() {
        let text = serde_json::to_string(&[1.5, f64::NAN, f64::INFINITY, f64::NEG_INFINITY].map(Number)).unwrap();
        assert_eq!(text, r#"[1.5,"NaN","inf","-inf"]"#);
        let back: Vec<Number> = serde_json::from_str(&text).unwrap();
        assert_eq!(back[0].0, 1.5);
        assert!(back[1].0.is_nan());
        assert_eq!((back[2].0, back[3].0), (f64::INFINITY, f64::NEG_INFINITY));
        let old: Vec<Number> = serde_json::from_str("[null, 3]").unwrap();
        assert!(old[0].0.is_nan() && old[1].0 == 3.0);
    }
}
