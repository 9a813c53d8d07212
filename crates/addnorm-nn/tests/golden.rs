//! Every scheme on every stack it has a form for, against the independent reference in `reference/`: plain
//! float64 code in another language, written from the papers' equations. The files hold forward values at every
//! named site, the loss, and the gradient of every parameter.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use addnorm_nn::*;
use addnorm_scheme::{Place, Scheme, Sublayer, library};
use safetensors::SafeTensors;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../reference")
}

/// Every golden file under a folder, by its path inside it.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// Values by name, and the header's texts.
fn read(path: &Path) -> (BTreeMap<String, Vec<f64>>, BTreeMap<String, String>) {
    let bytes = std::fs::read(path).unwrap();
    let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
    let texts = header.metadata().clone().unwrap().into_iter().collect();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let values = |data: &[u8]| data.chunks_exact(8).map(|b| f64::from_le_bytes(b.try_into().unwrap())).collect();
    (tensors.iter().map(|(name, view)| (name.to_string(), values(view.data()))).collect(), texts)
}

/// The configuration in a golden file: what it names, over the defaults.
fn config_of(text: &str) -> ModelConfig {
    let mut given: serde_json::Map<String, serde_json::Value> = serde_json::from_str(text).unwrap();
    if given["positions"] == "rotary" {
        given["positions"] = "rope".into();
    }
    let vision = given["stack"] == "vision";
    for key in ["classes", "image", "patch", "channels"] {
        if !vision {
            given.remove(key);
        }
    }
    serde_json::from_value(given.into()).unwrap()
}

/// The value of entry `i` of a parameter, by the rule that both sides share.
fn value(info: &ParameterInfo, one_plus: bool, i: usize) -> f64 {
    let hash = info.name.bytes().fold(0x811c_9dc5u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    let v = (f64::from(hash % 1000) + 1.0 + 0.7 * i as f64).sin();
    if info.shape.len() == 2 {
        return 0.4 * v;
    }
    let name = info.name.as_str();
    let from_one = (name.ends_with(".gain") && !one_plus)
        || name.ends_with(".alpha")
        || name.ends_with(".head_scale")
        || name.contains(".learned.");
    if from_one { 1.0 + 0.3 * v } else { 0.3 * v }
}

fn batch_of(config: &ModelConfig) -> (Inputs, Arc<[u32]>) {
    let tokens = |time: usize, token: &dyn Fn(usize, usize) -> usize| Tokens {
        numbers: (0..2 * time).map(|at| (token(at / time, at % time) % 7) as u32).collect(),
        shape: [2, time],
    };
    let target = |b: usize, t: usize| ((b + 2 * t + 3) % 7) as u32;
    match config.stack {
        StackKind::Decoder | StackKind::Encoder => {
            let asked = |b: usize, t: usize| config.stack == StackKind::Decoder || (b + t).is_multiple_of(2);
            let targets = (0..8).map(|at| (at / 4, at % 4));
            let targets = targets.map(|(b, t)| if asked(b, t) { target(b, t) } else { IGNORED }).collect();
            (Inputs::Text(tokens(4, &|b, t| 3 * b + 5 * t + 1)), targets)
        }
        StackKind::Pair => {
            let visible = (0..8).map(|at| at != 7).collect();
            let targets = (0..6).map(|at| (at / 3, at % 3));
            let targets = targets.map(|(b, t)| if (b, t) == (0, 2) { IGNORED } else { target(b, t) }).collect();
            let source = tokens(4, &|b, t| 2 * b + 3 * t + 2);
            (Inputs::Pair { source, visible, target: tokens(3, &|b, t| 3 * b + 5 * t + 1) }, targets)
        }
        StackKind::Vision => {
            let values = (0..32).map(|at| ((1 + at) as f64).sin() as f32).collect();
            (Inputs::Patches { values, shape: [2, 4, 4] }, [2, 3].into())
        }
    }
}

/// Writes down what passes by.
struct Sites<'a> {
    model: &'a Model,
    stack: usize,
    found: BTreeMap<String, Vec<f64>>,
}

impl Sites<'_> {
    fn prefix(&self) -> &'static str {
        if self.model.plans().len() == 1 { "" } else { ["encoder.", "decoder."][self.stack] }
    }
}

impl Observer for Sites<'_> {
    fn stack(&mut self, stack: usize) {
        self.stack = stack;
    }

    fn stream(&mut self, place: Place, stream: usize, x: &mut Tensor<3>) {
        let name = &self.model.plan().streams[stream];
        let name = format!("stream.{}{}.{name}", self.prefix(), place.prefix());
        self.found.insert(name, statistics::to_f64(x));
    }

    fn sublayer_output(&mut self, place: Place, sublayer: Sublayer, x: &mut Tensor<3>) {
        let name = format!("out.{}{}.{}", self.prefix(), place.prefix(), sublayer.name());
        self.found.insert(name, statistics::to_f64(x));
    }
}

/// The largest difference, over the largest number or one: a tensor whose numbers nearly cancel is as exact as
/// what it was computed from.
fn distance(found: &[f64], expected: &[f64]) -> f64 {
    let size = expected.iter().fold(1.0f64, |size, value| size.max(value.abs()));
    let differences = found.iter().zip(expected).map(|(found, expected)| (found - expected).abs() / size);
    // NaN comes through.
    differences.fold(0.0, |most, difference| if difference <= most { most } else { difference })
}

fn compare(name: &str, found: &[f64], expected: &[f64], tolerance: f64) {
    assert_eq!(found.len(), expected.len(), "{name}");
    let error = distance(found, expected);
    assert!(error < tolerance, "{name}: off by {error:.1e}");
}

/// Everything that a golden file holds, as the model computes it in a number type. `rounded` gives the parameters
/// the values that `f32` has of them, whatever the type.
fn computed(model: &Model, step: u64, dtype: DType, rounded: bool) -> BTreeMap<String, Vec<f64>> {
    let device = device("flex").unwrap();
    let one_plus = model.norm_kind() == addnorm_scheme::NormKind::RmsnormOnePlus;
    let parameter = |info: &ParameterInfo| {
        let values = (0..info.elements()).map(|i| value(info, one_plus, i));
        let values = values.map(|value| if rounded { f64::from(value as f32) } else { value }).collect();
        Weight::from_values(values, &info.shape, &device, dtype)
    };
    let weights = Weights(model.parameters().iter().map(parameter).collect());
    let (inputs, targets) = batch_of(model.config());
    let options = ForwardOptions { step, ..ForwardOptions::default() };
    let mut sites = Sites { model, stack: 0, found: BTreeMap::new() };
    let result =
        model.loss_and_gradients(&weights, &inputs, targets, 1.0, options, &mut sites).expect("every parameter learns");
    let mut found = sites.found;
    found.insert("loss".into(), vec![result.total]);
    let logits = model.logits(&weights, &inputs, options, &mut NoObserver);
    found.insert("logits".into(), statistics::to_f64(&logits));
    for (info, gradient) in model.parameters().iter().zip(&result.gradients) {
        found.insert(format!("grad.{}", info.name), gradient.to_values());
    }
    found
}

fn check(path: &Path) {
    let name = path.strip_prefix(root()).unwrap_or(path).display().to_string();
    let (expected, texts) = read(path);
    let (_, text) = library().find(|(known, _)| *known == texts["scheme"]).expect("the scheme is in the library");
    let scheme = Scheme::parse(&texts["scheme"], text).unwrap();
    let model = Model::new(&scheme, &config_of(&texts["config"])).unwrap_or_else(|error| panic!("{name}: {error}"));
    let step = texts["step"].parse().unwrap();
    let found = computed(&model, step, DType::F64, false);
    let names = |values: &BTreeMap<String, Vec<f64>>| values.keys().cloned().collect::<BTreeSet<String>>();
    assert_eq!(names(&found), names(&expected), "{name}: the same sites and parameters on both sides");
    for (site, expected) in &expected {
        compare(&format!("{name}: {site}"), &found[site], expected, 1e-9);
    }
    // Single precision against double from the same, already rounded, parameters. Where rounding the parameters
    // alone changes a result by more than that (a norm of something whose variance is near epsilon), no
    // single-precision program can be closer, and ten times that change is allowed.
    let (single, double) = (computed(&model, step, DType::F32, true), computed(&model, step, DType::F64, true));
    for (site, expected) in &double {
        let tolerance = (10.0 * distance(&found[site], expected)).clamp(1e-4, 2e-3);
        compare(&format!("{name} in f32: {site}"), &single[site], expected, tolerance);
    }
}

#[test]
fn every_scheme_on_every_stack_equals_the_reference() {
    let files = files(&root().join("golden"));
    assert!(files.len() > 180, "{} golden files", files.len());
    for path in files {
        check(&path);
    }
}

#[test]
fn no_scheme_is_without_its_reference() {
    for (name, text) in library() {
        let scheme = Scheme::parse(name, text).unwrap();
        for (stack_name, stack) in StackKind::ALL {
            let config = ModelConfig { stack, classes: 5, vocabulary: 7, image: 4, patch: 2, ..ModelConfig::default() };
            let file = root().join(format!("golden/{stack_name}/{name}.safetensors"));
            let has_form = Model::new(&scheme, &config).is_ok();
            assert_eq!(file.exists(), has_form, "{name} on {stack_name}");
        }
    }
}

/// Where the reference's own needs are installed, it is run anew and must give what is committed.
#[test]
fn the_golden_files_are_what_the_reference_gives() {
    let python = ["python3", "/usr/bin/python3"].into_iter().find(|python| {
        let probe = std::process::Command::new(python).args(["-c", "import torch"]).output();
        probe.is_ok_and(|output| output.status.success())
    });
    let Some(python) = python else {
        eprintln!("no Python with torch is installed: the golden files are taken as they are");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let output = std::process::Command::new(python)
        .args(["-B".as_ref(), root().join("reference.py").as_os_str()])
        .args(["--out".as_ref(), folder.path().as_os_str()])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let golden = root().join("golden");
    let relative = |folder: &Path| -> Vec<PathBuf> {
        files(folder).iter().map(|path| path.strip_prefix(folder).unwrap().to_path_buf()).collect()
    };
    assert_eq!(relative(folder.path()), relative(&golden));
    for path in relative(&golden) {
        let ((anew, _), (committed, _)) = (read(&folder.path().join(&path)), read(&golden.join(&path)));
        for (site, expected) in &committed {
            compare(&format!("{}: {site}", path.display()), &anew[site], expected, 1e-11);
        }
    }
}
