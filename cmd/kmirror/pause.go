package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"kmirror/internal/admin"
	"kmirror/statemachine"
)

// topicsVerb is pause, resume or recover.
type topicsVerb struct {
	name, short, long string
	goal              goal
	call              func(c *admin.Client, ctx context.Context, req admin.TopicsRequest) ([]admin.TopicResult, error)
}

func newPauseCommand(c *cli) *cobra.Command {
	return newTopicsCommand(c, topicsVerb{
		name: "pause", short: "Let mirroring of topics rest",
		long: `Let mirroring of topics rest: nothing more is copied, and the topics stay read-only. Waits until they are PAUSED.`,
		goal: goal{"PAUSED", []statemachine.State{statemachine.Paused}}, call: (*admin.Client).PauseTopics,
	})
}

func newResumeCommand(c *cli) *cobra.Command {
	return newTopicsCommand(c, topicsVerb{
		name: "resume", short: "Go on with topics that were paused",
		long: `Go on with topics that were paused, where they were. Waits until they are MIRRORING.`,
		goal: goal{"MIRRORING", []statemachine.State{statemachine.Mirroring}}, call: (*admin.Client).ResumeTopics,
	})
}

func newRecoverCommand(c *cli) *cobra.Command {
	return newTopicsCommand(c, topicsVerb{
		name: "recover", short: "Go on with partitions that are FAILED, once the cause is mended",
		long: `Go on with partitions of topics that are FAILED, where they were, once what made them fail is mended (describe --failed).
Waits until every partition is MIRRORING, PAUSED or STOPPED.`,
		goal: goal{"MIRRORING, PAUSED or STOPPED",
			[]statemachine.State{statemachine.Mirroring, statemachine.Paused, statemachine.Stopped}},
		call: (*admin.Client).RecoverTopics,
	})
}

func newTopicsCommand(c *cli, v topicsVerb) *cobra.Command {
	var mirror, topics string
	var wait time.Duration
	cmd := &cobra.Command{
		Use: v.name + " --mirror M --topics LIST", Short: v.short,
		Long: v.long + `
LIST: literal names, /re/ (RE2 over the whole name) and @file, separated by commas.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			list, err := admin.ParseList(topics)
			if err != nil {
				return err
			}
			return c.change(cmd.Context(), topicChange{verb: v.name, mirror: mirror, goal: v.goal, wait: wait,
				send: func(ctx context.Context, client *admin.Client, dryRun bool) ([]admin.TopicResult, error) {
					return v.call(client, ctx, admin.TopicsRequest{Mirror: mirror, Topics: list, DryRun: dryRun})
				}})
		},
	}
	cmd.Flags().StringVar(&mirror, "mirror", "", "name of the mirror")
	cmd.Flags().StringVar(&topics, "topics", "", "LIST of topics")
	mustRequire(cmd, "mirror", "topics")
	waitFlag(cmd, &wait)
	c.adminFlags(cmd)
	c.changeFlags(cmd)
	return cmd
}
