package admin

import (
	"context"
	"log/slog"

	"kmirror/protocol/kip1279"
)

// audit writes the line that every operator action leaves. Where a process passes on what it was asked, its own line names who asked.
func (s *Server) audit(verb string, who caller, err error, args ...any) {
	if who.forwarded {
		args = append(args, "forwarded", true)
	}
	s.record(slog.LevelInfo, "operator action", verb, who, err, args)
}

// maxSeen bounds the verbs that a connection is remembered to have asked: clients choose the names of private ones.
const maxSeen = 100

// auditRead writes the line of a question that changes nothing: the first time that a connection asks it, at debug level when it asks
// again, as describe --watch does. What a process passes on is logged where it was asked.
func (s *Server) auditRead(verb string, who caller, err error, args ...any) {
	if who.forwarded {
		return
	}
	s.record(who.level(verb), "operator question", verb, who, err, args)
}

// auditBetween writes the line of a change that processes ask each other for all the time: of a process the first time that a connection
// asks for it, at debug level later. Who is none, and can ask for it all the same, leaves a line each time.
func (s *Server) auditBetween(verb string, who caller, err error, args ...any) {
	if !who.forwarded {
		s.audit(verb, who, err, args...)
		return
	}
	s.record(who.level(verb), "process action", verb, who, err, append(args, "forwarded", true))
}

// level is that of a line which matters the first time that a connection causes it.
func (c caller) level(verb string) slog.Level {
	if c.seen == nil || c.seen[verb] || len(c.seen) >= maxSeen {
		return slog.LevelDebug
	}
	c.seen[verb] = true
	return slog.LevelInfo
}

func (s *Server) record(level slog.Level, message, verb string, who caller, err error, args []any) {
	result := "done"
	if err != nil {
		result = kip1279.ErrorName(asError(err).Code) + ": " + err.Error()
	}
	s.cfg.Log.Log(context.Background(), level, message, append([]any{
		"audit", true, "verb", verb, "principal", who.principal, "peer", who.address, "result", result,
	}, args...)...)
}
