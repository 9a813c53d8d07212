//! The process that does the work of `addnorm bench`. It and every peer speak the same language: a line of
//! JSON for a request, a line of JSON for its answer.

use std::io::{BufRead, Write};
use std::time::Instant;

use addnorm_nn::{Model, Positions, bench::NormLoad};
use addnorm_scheme::lookup;
use addnorm_train::bench::{Products, Workload};
use addnorm_train::{Recompute, RunConfig, RunSpec};
use serde::{Deserialize, Serialize};

use crate::failure::Failure;

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Request {
    /// What to get ready.
    Setup(Setup),
    /// Passes to run.
    Run(usize),
    /// Passes of the matrix products of a training step alone.
    Products(usize),
    /// Copies of as many bytes as a norm's pass moves.
    Copy(usize),
}

#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Task {
    #[default]
    Train,
    Evaluate,
    Norm,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Setup {
    pub task: Task,
    pub threads: usize,
    pub scheme: String,
    pub width: usize,
    pub blocks: usize,
    pub heads: usize,
    pub context: usize,
    pub batch: usize,
    pub vocabulary: usize,
    pub recompute: Option<Recompute>,
    /// Of a norm: `layernorm` or `rmsnorm`.
    pub kind: String,
    pub rows: usize,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Answer {
    /// Who answers, with its version.
    pub name: String,
    pub parameters: usize,
    pub seconds: f64,
    /// The last loss, or a number of the last result: that the work was done.
    pub value: Option<f64>,
    /// The most memory that the process has held, where the system says.
    pub peak_bytes: Option<u64>,
}

impl Setup {
    /// The model's run.
    pub fn spec(&self) -> Result<RunSpec, Failure> {
        let mut config = RunConfig { scheme: self.scheme.clone(), ..RunConfig::default() };
        let model = &mut config.model;
        (model.width, model.blocks, model.heads) = (self.width, self.blocks, self.heads);
        (model.context, model.vocabulary) = (self.context, self.vocabulary);
        (model.positions, model.tied) = (Positions::Learned, true);
        config.train.batch = self.batch;
        config.train.recompute = self.recompute.unwrap_or(Recompute::None);
        config.validate()?;
        let scheme = lookup(&self.scheme)?;
        Model::new(&scheme, &config.model).map_err(Failure::input)?;
        Ok(RunSpec { label: self.scheme.clone(), scheme, config })
    }
}

enum Work {
    Model { load: Box<Workload>, products: Option<Products>, trains: bool },
    Norm(Box<NormLoad>),
}

impl Work {
    fn new(setup: &Setup) -> Result<(Self, usize), Failure> {
        if setup.task == Task::Norm {
            let centre = setup.kind == "layernorm";
            let parameters = setup.width * if centre { 2 } else { 1 };
            return Ok((Work::Norm(Box::new(NormLoad::new(setup.rows, setup.width, centre))), parameters));
        }
        let load = Workload::new(&setup.spec()?)?;
        let parameters = load.parameters();
        Ok((Work::Model { load: Box::new(load), products: None, trains: setup.task == Task::Train }, parameters))
    }

    /// Makes `count` passes. What comes back is the last result and the seconds.
    fn answer(&mut self, request: &Request) -> Result<(f64, f64), Failure> {
        if let (Request::Products(_), Work::Model { load, products: products @ None, .. }) = (request, &mut *self) {
            *products = Some(load.products()?);
        }
        let started = Instant::now();
        let mut value = 0.0;
        match (request, self) {
            (&Request::Run(count), Work::Model { load, trains, .. }) => {
                for _ in 0..count {
                    value = if *trains { load.train()? } else { load.evaluate() };
                }
            }
            (&Request::Run(count), Work::Norm(load)) => (0..count).for_each(|_| load.pass()),
            (&Request::Products(count), Work::Model { products: Some(products), .. }) => {
                (0..count).for_each(|_| products.repeat());
            }
            (&Request::Copy(count), Work::Norm(load)) => (0..count).for_each(|_| load.copy()),
            (other, _) => return Err(Failure::input(format!("{other:?} does not fit what was set up"))),
        }
        Ok((value, started.elapsed().as_secs_f64()))
    }
}

/// Answers requests until there are no more.
pub fn serve() -> Result<(), Failure> {
    let mut work: Option<(Work, rayon::ThreadPool)> = None;
    for line in std::io::stdin().lock().lines() {
        let line = line.map_err(Failure::run)?;
        let request: Request = serde_json::from_str(&line).map_err(Failure::input)?;
        let mut answer = Answer::default();
        if let Request::Setup(setup) = &request {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(setup.threads).build().map_err(Failure::run)?;
            let (made, parameters) = pool.install(|| Work::new(setup))?;
            answer.name = format!("addnorm {}", env!("CARGO_PKG_VERSION"));
            answer.parameters = parameters;
            work = Some((made, pool));
        } else if let Some((work, pool)) = &mut work {
            let (value, seconds) = pool.install(|| work.answer(&request))?;
            (answer.value, answer.seconds) = (Some(value), seconds);
        } else {
            return Err(Failure::input("nothing was set up"));
        }
        answer.peak_bytes = peak_bytes();
        let text = serde_json::to_string(&answer).map_err(Failure::run)?;
        writeln!(std::io::stdout().lock(), "{text}").map_err(Failure::run)?;
    }
    Ok(())
}

/// The most memory that this process has held, where the system says.
fn peak_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.trim().trim_end_matches("kB").trim().parse::<u64>().ok()? * 1024)
}
