package testkafka

import (
	"encoding/base64"
	"fmt"
	"time"
)

// Bearer returns a token for OAUTHBEARER of a user, in the form that brokers take whose listener has OAuthBearerLoginModule and nothing that
// verifies tokens (an unsecured JWS). It ends after life, which may be negative.
func Bearer(user string, life time.Duration) string {
	part := func(format string, args ...any) string {
		return base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, format, args...))
	}
	now := time.Now()
	return part(`{"alg":"none"}`) + "." + part(`{"sub":%q,"iat":%d,"exp":%d}`, user, now.Add(-time.Hour).Unix(), now.Add(life).Unix()) + "."
}
