//! What is legal in a scheme but suspicious, found on its plan.

use std::collections::BTreeSet;

use crate::error::Lint;
use crate::plan::{Dimensions, Plan, Section, Stack, Step};
use crate::scheme::Scheme;

/// What is known of a value when it is made.
#[derive(Clone, Copy, Default)]
struct Fact {
    /// It is a norm's result, or a sum of such.
    normed: bool,
    /// A norm was the last thing done to it.
    just: bool,
}

/// Lints that a plan shows. Eight blocks are enough for any published first-block rule to give way to the rest.
pub(crate) fn lints(scheme: &Scheme) -> Vec<Lint> {
    let stack =
        if scheme.refusals.iter().any(|(stack, _)| stack == "decoder") { Stack::Encoder } else { Stack::Decoder };
    let dimensions = Dimensions { blocks: 8, width: 64, heads: 4, stack };
    let Ok(plan) = scheme.plan_whole(dimensions) else {
        return Vec::new();
    };
    let mut found = Finder { stack, lints: Vec::new(), seen: BTreeSet::new() };
    let mut streams = vec![Fact::default(); plan.streams.len()];
    for section in plan.sections() {
        streams = found.section(section, streams);
    }
    // A scheme that does without norms altogether means it.
    if !streams[0].normed && plan.sections().any(|section| section.norms().next().is_some()) {
        let message = "no norm stands before the head: it reads the residual stream as it has grown".to_string();
        found.add("no-final-norm", message, None);
    }
    found.streams(&plan);
    found.lints
}

/// How often each slot's value is read, under whatever name; a result of the section counts as read.
fn readers(section: &Section) -> Vec<usize> {
    let mut readers = vec![0; section.slots];
    for &output in &section.outputs {
        readers[output] += 1;
    }
    for step in section.steps.iter().rev() {
        match step {
            // Steps are in order, so every reader of the name has been counted by now.
            Step::Assign { input, output, .. } => readers[*input] += readers[*output],
            _ => step.reads(&mut |slot| readers[slot] += 1),
        }
    }
    readers
}

struct Finder {
    stack: Stack,
    lints: Vec<Lint>,
    seen: BTreeSet<(&'static str, Option<usize>, String)>,
}

impl Finder {
    fn add(&mut self, code: &'static str, message: String, line: Option<usize>) {
        if self.seen.insert((code, line, message.clone())) {
            self.lints.push(Lint { code, message, line });
        }
    }

    fn section(&mut self, section: &Section, streams: Vec<Fact>) -> Vec<Fact> {
        let mut facts = streams;
        facts.resize(section.slots, Fact::default());
        let readers = readers(section);
        for (at, step) in section.steps.iter().enumerate() {
            let line = section.steps[at..].iter().find_map(|step| match step {
                Step::Assign { line, .. } => Some(*line),
                _ => None,
            });
            match step {
                Step::Mix(mix) => {
                    // A normed value that something else reads too, such as a residual path, is no mistake.
                    let again =
                        matches!(mix.terms.as_slice(), [only] if facts[only.input].just && readers[only.input] == 1);
                    if mix.norm.is_some() && again {
                        let place = section.place.prefix();
                        let message = match place.as_str() {
                            "head" => "two norms in a row: the stream that the head's norm reads is normed already",
                            _ => "two norms in a row: the second reads what the first has just normed",
                        };
                        self.add("double-norm", message.to_string(), line);
                    }
                    // A sum is as normed as its least normed term.
                    let all = mix.terms.iter().all(|term| facts[term.input].normed);
                    let just = matches!(mix.terms.as_slice(), [only] if facts[only.input].just);
                    facts[mix.output] = Fact { normed: mix.norm.is_some() || all, just: mix.norm.is_some() || just };
                }
                Step::Gate { .. } => {}
                Step::Multiply { input, output, .. } => facts[*output] = facts[*input],
                Step::Apply { sublayer, output, .. } => {
                    if readers[*output] == 0 {
                        let message = format!("the output of {} is never used", sublayer.name());
                        self.add("unused-output", message, line);
                    }
                }
                Step::Assign { name, input, output, .. } => {
                    facts[*output] = facts[*input];
                    if readers[*output] == 0 {
                        self.add("unused-value", format!("the value given to '{name}' is never used"), line);
                    }
                }
            }
        }
        if matches!(section.place, crate::plan::Place::Block(_)) {
            for &sublayer in self.stack.sublayers() {
                if !section.applies(sublayer) {
                    self.add("missing-sublayer", format!("a block has no {}", sublayer.name()), None);
                }
            }
        }
        section.outputs.iter().map(|&slot| facts[slot]).collect()
    }

    /// Streams that nothing reads back: they cost memory and reach nothing.
    fn streams(&mut self, plan: &Plan) {
        for (stream, name) in plan.streams.iter().enumerate() {
            let reads = |section: &Section| {
                // As it enters, or under its name later on.
                let mut own = vec![false; section.slots];
                own[stream] = true;
                for step in &section.steps {
                    if let Step::Assign { name: given, output, .. } = step {
                        own[*output] = given == name;
                    }
                }
                let mut found = section.outputs.len() == 1 && own[section.outputs[0]];
                section.steps.iter().for_each(|step| step.reads(&mut |slot| found |= own[slot]));
                found
            };
            if !plan.blocks.iter().chain([&plan.head]).any(reads) {
                self.add("unused-stream", format!("nothing reads the stream '{name}'"), None);
            }
        }
    }
}
