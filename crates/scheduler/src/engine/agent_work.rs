//! What an agent does with the scheduler and on its own: the same in a thread of the engine and in a replay.

use std::time::Duration;

use super::ROWS_MAX;
use crate::agent::{Agent, CacheChange, Part};
use crate::inventory::Revision;
use crate::scheduler::{Scheduler, Settled, Task, TaskResult};

pub(crate) struct AgentWork {
    pub index: usize,
    pub agent: Agent,
    /// Of its last answer.
    pub laps: Vec<(Part, Duration)>,
}

/// What an agent does next.
pub(crate) enum Turn {
    /// A task, and the number of rows that the agent copied for it.
    Task(Task, usize),
    /// More rows have changed than may be copied at once.
    Behind,
    Nothing,
}

/// What an agent found for a task.
pub(crate) struct Answer {
    pub result: TaskResult,
    /// Revision of the rows that it chose from.
    seen: Revision,
    pub choice_took: Duration,
    changes: Vec<CacheChange>,
}

/// What follows an answer.
pub(crate) enum Next {
    Turn(Turn),
    /// The task is carried out again, with so many more rows.
    Again(usize),
    /// The commit may count what changed while the agent chose, and that is more than may be copied at once.
    CatchUp(Answer),
}

impl AgentWork {
    pub fn new(index: usize, agent: Agent) -> Self {
        AgentWork { index, agent, laps: Vec::new() }
    }

    /// Takes the next task, and copies the rows for it.
    pub fn take(&mut self, scheduler: &mut Scheduler, now: Duration) -> Turn {
        if self.agent.is_behind(scheduler.inventory(), ROWS_MAX) {
            return Turn::Behind;
        }
        let Some(task) = scheduler.next_task(self.index, now) else { return Turn::Nothing };
        let rows = self.agent.catch_up(scheduler.inventory());
        Turn::Task(task, rows)
    }

    /// Carries out a task on the agent's own rows. `lap` returns the time that a part took.
    pub fn answer(&mut self, task: &Task, now: Duration, mut lap: impl FnMut(Part) -> Duration) -> Answer {
        let laps = &mut self.laps;
        laps.clear();
        let result = task.carry_out(&mut self.agent, now, |part| laps.push((part, lap(part))));
        let changes = self.agent.cache_changes();
        Answer { result, seen: self.agent.revision(), choice_took: Duration::ZERO, changes }
    }

    /// Settles an answer, and takes the next task. The attempt took as long as `took` returns, and has copied so many rows.
    pub fn settle(
        &mut self,
        scheduler: &mut Scheduler,
        task: &Task,
        answer: Answer,
        (took, rows): (impl FnOnce() -> Duration, usize),
        now: Duration,
    ) -> Next {
        if self.agent.is_behind(scheduler.inventory(), ROWS_MAX) {
            return Next::CatchUp(answer);
        }
        let Answer { result, seen, choice_took, changes } = answer;
        let name = result.result();
        scheduler.learn(self.index, task, &self.laps, &changes);
        if scheduler.settle(self.index, &mut self.agent, task, result, seen, now) == Settled::Again {
            return Next::Again(self.agent.catch_up(scheduler.inventory()));
        }
        if !matches!(task, Task::Check { .. }) {
            scheduler.observe_attempt(name, took(), choice_took, rows);
        }
        Next::Turn(self.take(scheduler, now))
    }

    /// Copies changed rows. Returns whether none are left; otherwise [`Agent::make_room`] comes next.
    pub fn approach(&mut self, scheduler: &Scheduler) -> bool {
        self.agent.approach(scheduler.inventory(), ROWS_MAX)
    }
}
