//! `addnorm bench`: what a step costs here, beside the same step elsewhere, in one run.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};

use serde::{Deserialize, Serialize};

use crate::args::BenchArguments;
use crate::commands::bench_worker::{self, Answer, Request, Setup, Task};
use crate::failure::Failure;
use crate::printer;

/// What is measured unless a file says otherwise.
const SUITE: &str = include_str!("../../../../benches/suite.toml");

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Suite {
    #[serde(rename = "item")]
    items: Vec<Item>,
}

/// One thing to measure.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Item {
    task: ItemTask,
    #[serde(default)]
    scheme: String,
    #[serde(default)]
    kind: String,
    shape: String,
    #[serde(default)]
    recompute: Option<addnorm_train::Recompute>,
    /// Whether it is measured without peers.
    #[serde(default)]
    alone: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum ItemTask {
    Train,
    Evaluate,
    Norm,
    Memory,
}

impl Item {
    fn name(&self) -> String {
        let what = match self.task {
            ItemTask::Train => "training step",
            ItemTask::Evaluate => "evaluation",
            ItemTask::Norm => "forward and backward of",
            ItemTask::Memory => "memory of training",
        };
        let recomputes = self.recompute.is_some_and(|recompute| recompute.blocks() > 0);
        let recompute = if recomputes { ", recomputing" } else { "" };
        format!("{what} {}{} {}{recompute}", self.scheme, self.kind, self.shape)
    }

    fn setup(&self, threads: usize) -> Result<Setup, Failure> {
        let wrong = || {
            Failure::input(format!("'{}' is not a shape", self.shape))
                .hint("a model's is width/blocks/heads/context/batch, a norm's rows x width: 256/8/4/256/8, 4096x256")
        };
        let separator = if self.task == ItemTask::Norm { 'x' } else { '/' };
        let numbers: Result<Vec<usize>, _> = self.shape.split(separator).map(str::parse).collect();
        let numbers = numbers.map_err(|_| wrong())?;
        let mut setup = Setup { threads, vocabulary: 256, ..Setup::default() };
        match (self.task, numbers.as_slice()) {
            (_, numbers) if numbers.contains(&0) => return Err(wrong()),
            (ItemTask::Norm, &[rows, width]) => {
                if !["layernorm", "rmsnorm"].contains(&self.kind.as_str()) {
                    return Err(Failure::input(format!("'{}' is neither layernorm nor rmsnorm", self.kind)));
                }
                setup.task = Task::Norm;
                (setup.rows, setup.width, setup.kind) = (rows, width, self.kind.clone());
            }
            (task, &[width, blocks, heads, context, batch]) => {
                setup.task = if task == ItemTask::Evaluate { Task::Evaluate } else { Task::Train };
                (setup.width, setup.blocks, setup.heads) = (width, blocks, heads);
                (setup.context, setup.batch) = (context, batch);
                setup.scheme.clone_from(&self.scheme);
                setup.recompute = self.recompute;
                setup.spec()?;
            }
            _ => return Err(wrong()),
        }
        Ok(setup)
    }
}

/// A process that does the work when it is told to.
struct Worker {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    command: String,
}

impl Worker {
    fn start(mut command: Command, said: &str) -> Result<Self, Failure> {
        let fail = |error: std::io::Error| Failure::input(format!("'{said}' cannot be started: {error}"));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(fail)?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(Failure::run(format!("'{said}' has no input or output")));
        };
        Ok(Worker { child, input, output: BufReader::new(output), command: said.to_string() })
    }

    fn ours() -> Result<Self, Failure> {
        let program = std::env::current_exe().map_err(|error| Failure::run(format!("no path to addnorm: {error}")))?;
        let mut command = Command::new(program);
        command.args(["bench", "--worker"]);
        Self::start(command, "addnorm bench --worker")
    }

    fn peer(said: &str) -> Result<Self, Failure> {
        let mut words = said.split_whitespace();
        let mut command = Command::new(words.next().unwrap_or_default());
        command.args(words);
        Self::start(command, said)
    }

    fn ask(&mut self, request: &Request) -> Result<Answer, Failure> {
        let fail = |what: String| Failure::run(format!("'{}' {what}", self.command));
        let line = serde_json::to_string(request).map_err(Failure::run)?;
        writeln!(self.input, "{line}").and_then(|()| self.input.flush()).map_err(|error| fail(error.to_string()))?;
        let mut answer = String::new();
        self.output.read_line(&mut answer).map_err(|error| fail(error.to_string()))?;
        if answer.is_empty() {
            return Err(fail("ended without an answer".into()));
        }
        serde_json::from_str(&answer).map_err(|error| fail(format!("answered '{}': {error}", answer.trim())))
    }

    /// Seconds of one pass, over `count` of them.
    fn pass(&mut self, request: fn(usize) -> Request, count: usize) -> Result<f64, Failure> {
        // Threads of the one before may spin for a moment before they sleep.
        std::thread::sleep(std::time::Duration::from_millis(50));
        Ok(self.ask(&request(count))?.seconds / count as f64)
    }

    /// How many passes take about `seconds`; the first, which may compile or allocate, does not count.
    fn calibrate(&mut self, request: fn(usize) -> Request, seconds: f64) -> Result<usize, Failure> {
        self.pass(request, 1)?;
        let one = self.pass(request, 2)?;
        Ok(((seconds / one).round() as usize).clamp(1, 1_000_000))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Its input ends with `self.input`, but it may be at work.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Median, least and most of some numbers.
#[derive(Debug, Clone, Copy, Serialize)]
struct Spread {
    median: f64,
    least: f64,
    most: f64,
}

impl Spread {
    fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let middle = values.len() / 2;
        let median = if values.len() % 2 == 1 { values[middle] } else { (values[middle - 1] + values[middle]) / 2.0 };
        Spread { median, least: values[0], most: values[values.len() - 1] }
    }

    fn words(&self) -> String {
        format!("{:.2} ({:.2}-{:.2})", self.median, self.least, self.most)
    }
}

/// What was found of one item.
#[derive(Debug, Serialize)]
struct Found {
    name: String,
    /// Seconds of one pass.
    seconds: Spread,
    tokens_per_second: Option<f64>,
    /// Time over the time of the matrix products alone.
    over_products: Option<Spread>,
    /// Bytes moved a second over those that a copy moves.
    of_copy: Option<Spread>,
    peak_bytes: Option<u64>,
    peers: Vec<PeerFound>,
}

#[derive(Debug, Serialize)]
struct PeerFound {
    name: String,
    /// The peer's time over ours, pair by pair: above 1 we are faster.
    times_as_fast: Option<Spread>,
    /// Our peak memory over the peer's: below 1 we need less.
    of_memory: Option<f64>,
}

fn read_suite(path: Option<&Path>) -> Result<Suite, Failure> {
    let (text, said) = match path {
        None => (SUITE.to_string(), "the built-in suite".to_string()),
        Some(path) => {
            let said = path.display().to_string();
            (std::fs::read_to_string(path).map_err(|error| Failure::input(format!("{said}: {error}")))?, said)
        }
    };
    toml::from_str(&text).map_err(|error| Failure::input(format!("{said}: {error}")))
}

pub fn bench(arguments: &BenchArguments) -> Result<ExitCode, Failure> {
    if arguments.worker {
        return bench_worker::serve().map(|()| ExitCode::SUCCESS);
    }
    let mut items = read_suite(arguments.suite.as_deref())?.items;
    let names: Vec<String> = items.iter().map(Item::name).collect();
    items.retain(|item| arguments.only.iter().all(|part| item.name().contains(part)));
    if items.is_empty() {
        return Err(Failure::input("no item of the suite has that in its name").hint(names.join("\n")));
    }
    if arguments.repeats == 0 || !(arguments.seconds > 0.0 && arguments.seconds.is_finite()) {
        return Err(Failure::input("'--repeats' and '--seconds' are above 0"));
    }
    let threads = match arguments.threads {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        threads => threads,
    };
    let mut found = Vec::new();
    for item in &items {
        printer::message(&format!("measuring: {}", item.name()));
        found.push(measure(item, arguments, threads)?);
        if !arguments.json {
            printer::message(&format!("  {}", summary(&found[found.len() - 1])));
        }
    }
    if arguments.json {
        let report = serde_json::json!({ "threads": threads, "repeats": arguments.repeats, "items": found });
        printer::result(&serde_json::to_string_pretty(&report).map_err(Failure::run)?);
    } else {
        printer::result(&table(&found));
    }
    Ok(ExitCode::SUCCESS)
}

fn measure(item: &Item, arguments: &BenchArguments, threads: usize) -> Result<Found, Failure> {
    let setup = item.setup(threads)?;
    let mut ours = Worker::ours()?;
    let about_us = ours.ask(&Request::Setup(setup.clone()))?;
    let mut peers = Vec::new();
    for said in arguments.peers.iter().filter(|_| !item.alone) {
        let mut peer = Worker::peer(said)?;
        let about = peer.ask(&Request::Setup(setup.clone()))?;
        if about.name.is_empty() {
            return Err(Failure::run(format!("'{said}' does not say who it is"))
                .hint("a peer answers each line of JSON with one; benches/peers/pytorch.py shows how"));
        }
        if about.parameters != about_us.parameters {
            let (theirs, ours) = (about.parameters, about_us.parameters);
            return Err(Failure::run(format!(
                "'{said}' has {theirs} parameters where we have {ours}: not the same model"
            )));
        }
        peers.push((about.name, peer));
    }
    if item.task == ItemTask::Memory {
        return memory(item, ours, peers);
    }
    let ours_count = ours.calibrate(Request::Run, arguments.seconds)?;
    let mut counts = Vec::new();
    for (_, peer) in &mut peers {
        counts.push(peer.calibrate(Request::Run, arguments.seconds)?);
    }
    // What our time is set against besides: the products alone, or a copy.
    let reference: Option<fn(usize) -> Request> = match item.task {
        ItemTask::Train => Some(Request::Products),
        ItemTask::Norm => Some(Request::Copy),
        ItemTask::Evaluate | ItemTask::Memory => None,
    };
    let reference_count = match reference {
        Some(request) => ours.calibrate(request, arguments.seconds)?,
        None => 0,
    };
    let mut times = Vec::new();
    let mut references = Vec::new();
    let mut theirs = vec![Vec::new(); peers.len()];
    for _ in 0..arguments.repeats {
        times.push(ours.pass(Request::Run, ours_count)?);
        for ((theirs, (_, peer)), &count) in theirs.iter_mut().zip(&mut peers).zip(&counts) {
            theirs.push(peer.pass(Request::Run, count)?);
        }
        if let Some(request) = reference {
            references.push(ours.pass(request, reference_count)?);
        }
    }
    let ratios = |over: &[f64], under: &[f64]| Spread::of(over.iter().zip(under).map(|(a, b)| a / b).collect());
    let seconds = Spread::of(times.clone());
    let peak_bytes = ours.ask(&Request::Run(1))?.peak_bytes;
    let is_model = item.task != ItemTask::Norm;
    Ok(Found {
        name: item.name(),
        tokens_per_second: is_model.then(|| (setup.batch * setup.context) as f64 / seconds.median),
        over_products: (item.task == ItemTask::Train).then(|| ratios(&times, &references)),
        of_copy: (item.task == ItemTask::Norm).then(|| ratios(&references, &times)),
        seconds,
        peak_bytes,
        peers: peers
            .into_iter()
            .zip(theirs)
            .map(|((name, _), theirs)| PeerFound {
                name,
                times_as_fast: Some(ratios(&theirs, &times)),
                of_memory: None,
            })
            .collect(),
    })
}

/// Peak memory of three training steps in fresh processes.
fn memory(item: &Item, mut ours: Worker, peers: Vec<(String, Worker)>) -> Result<Found, Failure> {
    let mine = ours.ask(&Request::Run(3))?;
    drop(ours);
    let mut found = Vec::new();
    for (name, mut peer) in peers {
        let theirs = peer.ask(&Request::Run(3))?;
        let of_memory = mine.peak_bytes.zip(theirs.peak_bytes).map(|(mine, theirs)| mine as f64 / theirs as f64);
        found.push(PeerFound { name, times_as_fast: None, of_memory });
    }
    let seconds = Spread::of(vec![mine.seconds / 3.0]);
    let peak_bytes = mine.peak_bytes;
    Ok(Found {
        name: item.name(),
        seconds,
        tokens_per_second: None,
        over_products: None,
        of_copy: None,
        peak_bytes,
        peers: found,
    })
}

fn summary(found: &Found) -> String {
    cells(found).join("  ").trim_end().to_string()
}

fn cells(found: &Found) -> Vec<String> {
    let milliseconds = found.seconds.median * 1e3;
    let against = match (&found.over_products, &found.of_copy) {
        (Some(spread), _) => format!("{} of its products", spread.words()),
        (_, Some(spread)) => format!("{} of a copy's speed", spread.words()),
        _ => String::new(),
    };
    let peer = |peer: &PeerFound| match (peer.times_as_fast, peer.of_memory) {
        (Some(spread), _) => format!("{} x {}", spread.words(), peer.name),
        (_, Some(share)) => format!("{share:.2} of the memory of {}", peer.name),
        _ => String::new(),
    };
    let mut cells = vec![
        if milliseconds < 10.0 { format!("{milliseconds:.2} ms") } else { format!("{milliseconds:.0} ms") },
        found.tokens_per_second.map_or_else(String::new, |speed| format!("{speed:.0}")),
        found.peak_bytes.map_or_else(String::new, |bytes| format!("{:.0} MB", bytes as f64 / 1e6)),
        against,
    ];
    cells.push(found.peers.iter().map(peer).collect::<Vec<_>>().join("; "));
    cells
}

fn table(found: &[Found]) -> String {
    let header = ["measured", "a pass", "tokens/s", "peak", "time against", "peers"];
    let rows = found.iter().map(|found| [vec![found.name.clone()], cells(found)].concat()).collect();
    addnorm_report::plain_table(&header, rows)
}
