//! The process that does the work of `addnorm bench`. It and every peer speak the same language: a line of
//! JSON for a request, a line of JSON for its answer.

use std::io::{BufRead, Write};
use std::time::Instant;

use addnorm_nn::{Positions, bench::NormLoad};
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
    pub value: f64,
    /// The most memory that the process has held.
    pub peak_bytes: u64,
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
        let mut config = RunConfig { scheme: setup.scheme.clone(), ..RunConfig::default() };
        let model = &mut config.model;
        (model.width, model.blocks, model.heads) = (setup.width, setup.blocks, setup.heads);
        (model.context, model.vocabulary) = (setup.context, setup.vocabulary);
        (model.positions, model.tied) = (Positions::Learned, true);
        config.train.batch = setup.batch;
        config.train.recompute = setup.recompute.unwrap_or(Recompute::None);
        let scheme = lookup(&setup.scheme)?;
        let load = Workload::new(&RunSpec { label: setup.scheme.clone(), scheme, config })?;
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
            (answer.value, answer.seconds) = pool.install(|| work.answer(&request))?;
        } else {
            return Err(Failure::input("nothing was set up"));
        }
        answer.peak_bytes = peak_bytes();
        let text = serde_json::to_string(&answer).map_err(Failure::run)?;
        writeln!(std::io::stdout().lock(), "{text}").map_err(Failure::run)?;
    }
    Ok(())
}

/// The most memory that this process has held, where the system says; else 0.
fn peak_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or_default();
    line.trim().trim_end_matches("kB").trim().parse::<u64>().unwrap_or(0) * 1024
}
